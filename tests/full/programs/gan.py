"""Two networks against each other, each in a DataParallel of its own with its own optimizer."""

import torch
from torch import nn

torch.manual_seed(3)
device = torch.device("cuda:0")
gpus = list(range(torch.cuda.device_count()))
noise_width, batch, steps = 6, 16, 6


def initialize(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.05)


generator = nn.Sequential(
    nn.ConvTranspose2d(noise_width, 8, 4, 1, 0, bias=False),
    nn.ReLU(True),
    nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
critic = nn.Sequential(
    nn.Conv2d(1, 8, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(8, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
).to(device)
if len(gpus) > 1:
    generator = nn.DataParallel(generator, gpus)
    critic = nn.DataParallel(critic, gpus)
generator.apply(initialize)
critic.apply(initialize)
real_images = torch.tanh(torch.randn(batch, 1, 8, 8) + 1)
noises = torch.randn(steps, batch, noise_width, 1, 1)

criterion = nn.BCELoss()
critics_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.5, 0.999))
generators_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))
ones, zeros = torch.full((batch,), 1.0, device=device), torch.full((batch,), 0.0, device=device)
losses = []
for step in range(steps):
    critic.zero_grad()
    on_real = criterion(critic(real_images.to(device)).view(-1), ones)
    on_real.backward()
    fake = generator(noises[step].to(device))
    on_fake = criterion(critic(fake.detach()).view(-1), zeros)
    on_fake.backward()
    critics_optimizer.step()
    generator.zero_grad()
    fooled = criterion(critic(fake).view(-1), ones)
    fooled.backward()
    generators_optimizer.step()
    losses.append((on_real.item() + on_fake.item(), fooled.item()))
