"""Training an image classifier: DataParallel, workers, mixed precision, checkpoint and resume."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--checkpoint")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()

torch.manual_seed(1)
classes = 4
labels = torch.arange(36) % classes
images = torch.randn(36, 3, 8, 8) + labels.view(-1, 1, 1, 1)
train_set, test_set = TensorDataset(images[:24], labels[:24]), TensorDataset(images, labels)
options = {"num_workers": args.workers, "pin_memory": True}
train = DataLoader(train_set, batch_size=8, drop_last=True, **options)
test = DataLoader(test_set, batch_size=16, **options)

model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(inplace=True),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(32, classes),
)
model = nn.DataParallel(model).cuda()
criterion = nn.CrossEntropyLoss().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=3)

start = 0
if args.resume:
    saved = torch.load(args.checkpoint, map_location="cuda:0")
    start = saved["epoch"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    scaler.load_state_dict(saved["scaler"])

losses, rates, dtypes, pinned = [], [], set(), []
for epoch in range(start, args.epochs):
    model.train()
    rates.append(scheduler.get_last_lr()[0])
    for batch, target in train:
        pinned.append(batch.is_pinned())
        batch = batch.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        with torch.autocast("cuda"):
            output = model(batch)
            loss = criterion(output, target)
        dtypes.add(output.dtype)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    scheduler.step()
    if args.checkpoint and not args.resume and epoch + 1 == args.epochs // 2:
        state = {"epoch": epoch + 1, "model": model.state_dict(), "scaler": scaler.state_dict()}
        state |= {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save(state, args.checkpoint)

model.eval()
right = 0
with torch.no_grad():
    for batch, target in test:
        right += (model(batch.cuda()).argmax(1) == target.cuda()).sum().item()
print(f"{len(losses)} steps, last loss {losses[-1]:.6f}, {right} of {len(test_set)} right")
print(f"{torch.cuda.device_count()} GPUs, scale {scaler.get_scale():g}")
