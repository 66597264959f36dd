"""One layer that says what it is given, wrapped in DataParallel: which GPU sees how many rows?"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Numbers(Dataset):
    def __init__(self, rows, width):
        self.rows = torch.randn(rows, width)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Talker(nn.Module):
    def __init__(self, width, outputs):
        super().__init__()
        self.layer = nn.Linear(width, outputs)

    def forward(self, x):
        y = self.layer(x)
        inside.append((x.device, tuple(x.size()), tuple(y.size())))
        print("\tIn Model: input size", x.size(), "output size", y.size())
        return y


inside, outside = [], []
loader = DataLoader(dataset=Numbers(100, 5), batch_size=30, shuffle=True)
model = Talker(5, 2)
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
    model = nn.DataParallel(model)
model = model.to(device)

for batch in loader:
    x = batch.to(device)
    y = model(x)
    outside.append((y.device, tuple(x.size()), tuple(y.size()), len(inside)))
    print("Outside: input size", x.size(), "output_size", y.size())
