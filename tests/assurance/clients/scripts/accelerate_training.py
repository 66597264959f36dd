"""A training loop with accelerate's Accelerator, on one GPU or on as many as there are ranks.

Arguments: the precision of the forward pass, the rows of a batch on each rank, the type of data.
"""

import json
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
precision, rows, dtype = sys.argv[1], int(sys.argv[2]), getattr(torch, sys.argv[3])
accelerator = Accelerator(
    mixed_precision=precision,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
)
points = torch.randn(64, 6, dtype=dtype)
data = TensorDataset(points, points[:, :2].argmax(1))
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).to(dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
loader = DataLoader(data, batch_size=rows, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for _ in range(6):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(accelerator.gather(loss).mean().item())
accelerator.save_state("state")
accelerator.wait_for_everyone()
before = [p.detach().clone() for p in model.parameters()]
nn.init.zeros_(next(model.parameters()))
accelerator.load_state("state")
report = {
    "device": str(accelerator.device),
    "ranks": accelerator.num_processes,
    "wrapper": type(model).__module__,
    "losses": losses,
    "restored": all(map(torch.equal, model.parameters(), before)),
}
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    print(json.dumps(report), flush=True)
accelerator.end_training()
