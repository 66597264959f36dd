"""ignite's supervised trainer and evaluator, with metrics, over a DataParallel."""

import json

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, global_step_from_engine
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
device = idist.device()
points = torch.randn(64, 6)
data = TensorDataset(points, points[:, :2].argmax(1))
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
rows_on: dict[str, int] = {}


def count_rows(module, inputs):
    rows_on[str(inputs[0].device)] = rows_on.get(str(inputs[0].device), 0) + len(inputs[0])


net[0].register_forward_pre_hook(count_rows)
model = idist.auto_model(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion, device=device)
metrics = {"right": Accuracy(device=device), "loss": Loss(criterion, device=device)}
evaluator = create_supervised_evaluator(model, metrics=metrics, device=device)
saver = DiskSaver("saved", create_dir=True)
keep = Checkpoint(
    {"model": model}, saver, n_saved=1, global_step_transform=global_step_from_engine(trainer)
)
evaluator.add_event_handler(Events.COMPLETED, keep)
losses, rows = [], {}


@trainer.on(Events.ITERATION_COMPLETED)
def note(engine):
    losses.append(engine.state.output)


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    rows.update(rows_on)
    evaluator.run(DataLoader(data, 32))


trainer.run(DataLoader(data, 16), max_epochs=4)
state = torch.load(f"saved/{keep.last_checkpoint.name}", weights_only=True)
report = {
    "device": str(device),
    "wrapper": type(model).__module__,
    "losses": losses,
    "right": evaluator.state.metrics["right"],
    "loss": evaluator.state.metrics["loss"],
    "devices": sorted(rows),
    "saved": sorted(state),
    "weights": torch.cat([p.detach().cpu().flatten() for p in model.parameters()]).tolist(),
}
print(json.dumps(report))
