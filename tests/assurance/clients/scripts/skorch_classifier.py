"""skorch's classifier over a DataParallel: fitted, copied by a grid search, pickled."""

import json
import pickle

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

torch.set_default_dtype(torch.float64)
rows_on: dict[str, int] = {}


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        rows_on[str(x.device)] = rows_on.get(str(x.device), 0) + len(x)
        return self.layers(x).softmax(1)


class Parallel(nn.DataParallel):
    """What a user writes to let skorch construct it."""

    def __init__(self, width=16):
        super().__init__(Net(width))


torch.manual_seed(0)
points = np.random.default_rng(0).normal(size=(64, 6))
labels = (points[:, 0] > points[:, 1]).astype("int64")
settings = {"max_epochs": 5, "lr": 0.5, "train_split": None, "verbose": 0, "device": "cuda"}
net = NeuralNetClassifier(Parallel, batch_size=16, **settings).fit(points, labels)
rows = dict(rows_on)
probabilities = net.predict_proba(points)
again = pickle.loads(pickle.dumps(net))
search = GridSearchCV(net, {"module__width": [4, 8]}, cv=2, refit=False).fit(points, labels)
report = {
    "losses": net.history[:, "train_loss"],
    "right": float(net.score(points, labels)),
    "rows": rows,
    "wrapper": nn.DataParallel.__module__,
    "same_after_pickling": bool(np.array_equal(again.predict_proba(points), probabilities)),
    "searched": len(search.cv_results_["mean_test_score"]),
    "scores_are_numbers": bool(np.isfinite(search.cv_results_["mean_test_score"]).all()),
    "weights": torch.cat([p.detach().cpu().flatten() for p in net.module_.parameters()]).tolist(),
}
print(json.dumps(report))
