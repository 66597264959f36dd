"""A model that is too big for one GPU, on two; then the same as a pipeline of small batches."""

import torch
from torch import nn

first, second = torch.device("cuda:0"), torch.device(f"cuda:{torch.cuda.device_count() - 1}")
torch.manual_seed(5)


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Linear(6, 16), nn.ReLU()).to(first)
        self.back = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).to(second)

    def forward(self, x):
        return self.back(self.front(x.to(first)).to(second))


class Pipeline(Halves):
    """While the second GPU works on one part of the batch, the first begins the next."""

    def __init__(self, part):
        super().__init__()
        self.part = part
        self.streams = [torch.cuda.Stream(first), torch.cuda.Stream(second)]

    def forward(self, x):
        results, events = [], []
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        for piece in x.split(self.part):
            with torch.cuda.stream(self.streams[0]):
                middle = self.front(piece.to(first, non_blocking=True))
                moved = middle.to(second, non_blocking=True)
                done = torch.cuda.Event()
                done.record()
                events.append(done)
            with torch.cuda.stream(self.streams[1]):
                torch.cuda.current_stream().wait_event(done)
                moved.record_stream(torch.cuda.current_stream())
                results.append(self.back(moved))
        torch.cuda.current_stream(second).wait_stream(self.streams[1])
        torch.cuda.synchronize(second)
        assert all(event.query() for event in events)
        return torch.cat(results)


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        output = model(batch)
        loss = nn.functional.mse_loss(output, target.to(output.device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


batch, target = torch.randn(12, 6), torch.randn(12, 3)
model = Halves()
pipeline = Pipeline(4)
pipeline.load_state_dict(model.state_dict())
losses = train(model)
pipelined = train(pipeline)
