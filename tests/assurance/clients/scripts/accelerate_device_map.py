"""accelerate spreads a tiny GPT-2 over all GPUs, and one part of it over the host as well.

First through transformers' `device_map="auto"`, then through accelerate only, with memory limits
that leave the end of the model on the host, from where each call fetches it.
"""

import json

import torch
from accelerate import dispatch_model, infer_auto_device_map
from accelerate.utils import compute_module_sizes
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(
    n_layer=4, n_head=2, n_embd=16, vocab_size=40, n_positions=16, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config).eval()
model.save_pretrained("saved")
text = torch.randint(40, (3, 6))
with torch.no_grad():
    expected = model(text).logits

spread = GPT2LMHeadModel.from_pretrained("saved", device_map="auto").eval()
with torch.no_grad():
    logits = spread(text).logits
spread(text, labels=text).loss.backward()
model(text, labels=text).loss.backward()
written = spread.generate(text.cuda(), max_new_tokens=4, do_sample=False, pad_token_id=0)

count = torch.cuda.device_count()
block = compute_module_sizes(model)["transformer.h.0"]
limits = dict.fromkeys(range(count), 2 * block) | {"cpu": "1GiB"}
shares = infer_auto_device_map(model, max_memory=limits, no_split_module_classes=["GPT2Block"])
offloaded = dispatch_model(
    GPT2LMHeadModel.from_pretrained("saved").eval(), device_map=shares, offload_dir="offloaded"
)
with torch.no_grad():
    by_hand = offloaded(text).logits

report = {
    "devices": sorted({str(p.device) for p in spread.parameters()}),
    "map": {name: str(device) for name, device in spread.hf_device_map.items()},
    "logits_on": str(logits.device),
    "close": torch.allclose(logits.cpu(), expected, atol=1e-6),
    "gradients": [
        torch.allclose(a.grad.cpu(), b.grad, atol=1e-5)
        for a, b in zip(spread.parameters(), model.parameters(), strict=True)
    ],
    "same_words": torch.equal(
        written.cpu(), model.generate(text, max_new_tokens=4, do_sample=False, pad_token_id=0)
    ),
    "offloaded_to": sorted({str(device) for device in shares.values()}),
    "offloaded_close": torch.allclose(by_hand.cpu(), expected, atol=1e-6),
}
print(json.dumps(report))
