"""A small causal language model of the transformers library, under DataParallel on all GPUs."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 40, "n_positions": 12}
config = GPT2Config(
    **sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0
)
model = nn.DataParallel(GPT2LMHeadModel(config)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
text = torch.randint(40, (8, 12)).cuda()
losses = []
for _ in range(4):
    optimizer.zero_grad()
    output = model(input_ids=text, labels=text, use_cache=False)
    loss = output["loss"].mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
