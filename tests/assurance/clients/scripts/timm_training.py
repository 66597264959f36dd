"""timm: a small vision transformer and a residual network with its optimizers and averaged weights.

Argument: which model. Prints one line of JSON.
"""

import json
import sys

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, NativeScaler, accuracy, dispatch_clip_grad
from torch import nn

MODELS = {
    "transformer": (
        "vit_tiny_patch16_224",
        {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2},
    ),
    "residual": ("resnet10t", {}),
}
torch.manual_seed(0)
name, options = MODELS[sys.argv[1]]
model = timm.create_model(name, num_classes=5, **options).cuda()
averaged = ModelEmaV3(model, decay=0.9)
parallel = nn.DataParallel(model)
optimizer = create_optimizer_v2(parallel, opt="adamw", lr=2e-3, weight_decay=0.05)
scheduler = CosineLRScheduler(optimizer, t_initial=6)
scaler = NativeScaler(device="cuda")
mixed = Mixup(mixup_alpha=0.1, num_classes=5)
images, labels = torch.randn(20, 3, 32, 32).cuda(), (torch.arange(20) % 5).cuda()
losses = []
for epoch in range(6):
    inputs, targets = mixed(images.clone(), labels)
    with torch.autocast("cuda"):
        loss = SoftTargetCrossEntropy()(parallel(inputs), targets)
    optimizer.zero_grad()
    scaler(loss, optimizer, clip_grad=1.0, parameters=parallel.parameters())
    averaged.update(model)
    scheduler.step(epoch + 1)
    losses.append(loss.item())
dispatch_clip_grad(parallel.parameters(), 1.0, mode="agc")
parallel.eval()
with torch.no_grad():
    together, single = parallel(images), model(images)
    features = model.forward_features(images[:2])
report = {
    "wrapper": type(parallel).__module__,
    "losses": losses,
    "close": torch.allclose(together, single, atol=1e-5),
    "top1": accuracy(together, labels)[0].item(),
    "averaged_on": str(next(averaged.module.parameters()).device),
    "features": list(features.shape),
}
print(json.dumps(report))
