"""A LightningModule trained by lightning's Trainer, on one GPU or on the CPU (the argument)."""

import json
import sys
from typing import ClassVar

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    devices: ClassVar[set[str]] = set()

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
        self.losses = []

    def training_step(self, batch, _):
        x, y = batch
        self.devices.add(str(x.device))
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("right", (self.net(x).argmax(1) == y).double().mean(), on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


lightning.seed_everything(0)
torch.set_default_dtype(torch.float64)
points = torch.randn(64, 6)
data = TensorDataset(points, points[:, :2].argmax(1))
model = Classifier()
trainer = lightning.Trainer(
    accelerator=sys.argv[1],
    devices=1,
    max_epochs=4,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    gradient_clip_val=1.0,
)
trainer.fit(model, DataLoader(data, 16), DataLoader(data, 16))
checkpoint = trainer.checkpoint_callback.best_model_path
again = Classifier.load_from_checkpoint(checkpoint, map_location="cpu")
report = {
    "devices": sorted(model.devices),
    "losses": model.losses,
    "right": float(trainer.callback_metrics["right"]),
    "weights": torch.cat([p.detach().cpu().flatten() for p in model.parameters()]).tolist(),
    "reloaded": all(
        torch.equal(a, b.cpu()) for a, b in zip(again.parameters(), model.parameters(), strict=True)
    ),
}
print(json.dumps(report))
