"""PyTorch Geometric's DataParallel for lists of graphs, and layers on a sparse adjacency matrix."""

import json

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataListLoader
from torch_geometric.nn import DataParallel, GCNConv, GraphConv, SAGEConv, global_mean_pool
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csr_tensor

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
count = torch.cuda.device_count()
graphs_on: dict[str, int] = {}


def graph(label):
    nodes = int(torch.randint(4, 9, ()))
    edges = torch.randint(nodes, (2, 3 * nodes))
    return Data(x=torch.randn(nodes, 4) + label, edge_index=edges, y=torch.tensor([label]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(4, 16), GCNConv(16, 16)
        self.last = nn.Linear(16, 2)

    def forward(self, batch):
        device = str(batch.x.device)
        graphs_on[device] = graphs_on.get(device, 0) + batch.num_graphs
        hidden = self.first(batch.x, batch.edge_index).relu()
        hidden = self.second(hidden, batch.edge_index).relu()
        return self.last(global_mean_pool(hidden, batch.batch))


graphs = [graph(i % 2) for i in range(32)]
net = Net()
model = DataParallel(net).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
losses = []
for _ in range(6):
    for listed in DataListLoader(graphs, batch_size=16):
        optimizer.zero_grad()
        scores = model(listed)
        labels = torch.cat([each.y for each in listed]).to(scores.device)
        loss = nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def learned_from(edges, device):
    """What layers make of a graph's edges, or of its adjacency matrix; the nodes' gradient."""
    torch.manual_seed(0)
    layers = [SAGEConv(4, 8).to(device), GraphConv(8, 2).to(device)]
    x = graphs[0].x.detach().to(device).requires_grad_()
    out = layers[1](layers[0](x, edges).relu(), edges)
    out.square().sum().backward()
    return out.tolist(), x.grad.tolist()


edges = graphs[0].edge_index.unique(dim=1)
matrices = [
    make(edges, size=graphs[0].num_nodes) for make in (to_torch_coo_tensor, to_torch_csr_tensor)
]
report = {
    "by_edges": learned_from(edges, "cpu"),
    "by_matrix": [learned_from(each.cuda().t(), "cuda") for each in matrices],
    "of": [base.__module__ for base in DataParallel.__mro__ if base.__name__ == "DataParallel"],
    "losses": losses,
    "graphs": graphs_on,
    "scores_on": str(scores.device),
    "weights": torch.cat([p.detach().cpu().flatten() for p in net.parameters()]).tolist(),
}
print(json.dumps(report))
