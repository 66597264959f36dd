"""A word language model: an LSTM over batches side by side, its hidden state carried along."""

import torch
from torch import nn

torch.manual_seed(7)
words, width, columns, length = 20, 12, 8, 5
text = (torch.arange(columns * 40) * 7 + torch.randint(2, (columns * 40,))) % words
text = text.view(columns, -1).t().contiguous().cuda()  # a column is one stretch of the text


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, num_layers=2)
        self.decoder = nn.Linear(width, words)
        self.decoder.weight = self.encoder.weight

    def forward(self, x, hidden):
        self.rnn.flatten_parameters()
        hidden = tuple(state.contiguous() for state in hidden)  # cuDNN takes no part of a batch
        output, hidden = self.rnn(self.encoder(x), hidden)
        seen.append((x.device, tuple(x.shape), tuple(hidden[0].shape)))
        return self.decoder(output), hidden


def detached(hidden):
    return tuple(state.detach() for state in hidden)


seen, losses = [], []
net = Model()
# The batch is the second dimension, of the text as well as of the hidden state.
model = nn.DataParallel(net, dim=1).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
hidden = tuple(torch.zeros(2, columns, width, device="cuda") for _ in range(2))
for start in 2 * list(range(0, 35, length)):
    x, target = text[start : start + length], text[start + 1 : start + 1 + length]
    hidden = detached(hidden)
    optimizer.zero_grad()
    output, hidden = model(x, hidden)
    loss = criterion(output.view(-1, words), target.reshape(-1))
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    losses.append(loss.item())
