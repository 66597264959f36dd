"""A training loop with accelerate's Accelerator on one GPU, in half precision, losses scaled."""

import json

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="fp16")
points = torch.randn(64, 6)
data = TensorDataset(points, points[:, :2].argmax(1))
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
loader = DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for _ in range(6):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(accelerator.gather(loss).item())
accelerator.save_state("state")
before = [p.detach().clone() for p in model.parameters()]
nn.init.zeros_(model[0].weight)
accelerator.load_state("state")
report = {
    "device": str(accelerator.device),
    "losses": losses,
    "restored": all(map(torch.equal, model.parameters(), before)),
}
print(json.dumps(report))
