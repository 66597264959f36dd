"""The networks of the published times: ResNets, GPT-2, BERT, and a translator of two LSTMs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    """Three convolutions around a shortcut (He et al. 2015, in the variant v1.5)."""

    def __init__(self, wide: int, planes: int, stride: int) -> None:
        super().__init__()
        out = 4 * planes
        self.body = nn.Sequential(
            *(nn.Conv2d(wide, planes, 1, bias=False), nn.BatchNorm2d(planes), nn.ReLU(True)),
            nn.Conv2d(planes, planes, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(planes), nn.ReLU(True)),
            *(nn.Conv2d(planes, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or wide != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """ResNet-50 for 1000 classes: 25.6 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    wide = 64
    for number, (planes, count) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for block in range(count):
            layers.append(Bottleneck(wide, planes, 2 if number and not block else 1))
            wide = 4 * planes
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000))


class Grouped(nn.Module):
    """A block of ResNeXt: a convolution in groups between two of 1 x 1, around a shortcut."""

    def __init__(self, wide: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        inner = groups * 64 * out // 256
        self.body = nn.Sequential(
            *(nn.Conv2d(wide, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(True)),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False),
            *(nn.BatchNorm2d(inner), nn.ReLU(True)),
            *(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if wide != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnext29() -> nn.Module:
    """ResNeXt-29, 16 groups of 64 channels, for the images of CIFAR (Xie et al. 2016)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)]
    layers.append(nn.ReLU(True))
    wide = 64
    for number, out in enumerate((256, 512, 1024)):
        for block in range(3):
            layers.append(Grouped(wide, out, 2 if number and not block else 1, 16))
            wide = out
    return nn.Sequential(*layers, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(wide, 10))


class Block(nn.Module):
    """A layer of GPT-2, whose attention is computed step by step, as it was in 2021."""

    def __init__(self, wide: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.inputs, self.output = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.mlp = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, wide = x.shape
        parts = self.inputs(self.first(x)).view(count, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)) / (wide // self.heads) ** 0.5
        allowed = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = torch.where(allowed, scores, -1e4).softmax(-1)
        x = x + self.output((weights @ value).transpose(1, 2).reshape(count, length, wide))
        return x + self.mlp(self.second(x))


class GPT2(nn.Module):
    """GPT-2 of 124 million parameters, with its loss, as transformers has it."""

    def __init__(self) -> None:
        super().__init__()
        wide = 768
        self.words, self.places = nn.Embedding(50257, wide), nn.Embedding(1024, wide)
        self.blocks = nn.ModuleList(Block(wide, 12) for _ in range(12))
        self.norm = nn.LayerNorm(wide)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores = self.norm(x) @ self.words.weight.t()
        wanted = tokens[:, 1:].reshape(-1)
        return F.cross_entropy(scores[:, :-1].reshape(-1, 50257), wanted).unsqueeze(0)


class Encoding(nn.Module):
    """A layer of BERT: as of GPT-2, but every token sees all, and the norms come last."""

    def __init__(self, wide: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.query, self.key, self.value, self.output = (nn.Linear(wide, wide) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, wide = x.shape
        query, key, value = (
            layer(x).view(count, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = (query @ key.transpose(-1, -2)) / (wide // self.heads) ** 0.5
        found = (scores.softmax(-1) @ value).transpose(1, 2).reshape(count, length, wide)
        x = self.first(x + self.output(found))
        return self.second(x + self.mlp(x))


class Bert(nn.Module):
    """BERT-base of 110 million parameters with both heads of its pretraining, and their loss.

    30,528 words, and a score for each of them at each token (NVIDIA/DeepLearningExamples).
    """

    def __init__(self) -> None:
        super().__init__()
        wide, self.count = 768, 30528
        self.words, self.places = nn.Embedding(self.count, wide), nn.Embedding(512, wide)
        self.kinds, self.norm = nn.Embedding(2, wide), nn.LayerNorm(wide)
        self.layers = nn.ModuleList(Encoding(wide, 12) for _ in range(12))
        self.pooler, self.follows = nn.Linear(wide, wide), nn.Linear(wide, 2)
        self.transform = nn.Sequential(nn.Linear(wide, wide), nn.GELU(), nn.LayerNorm(wide))
        self.bias = nn.Parameter(torch.zeros(self.count))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places) + self.kinds(torch.zeros_like(tokens))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        follows = self.follows(torch.tanh(self.pooler(x[:, 0])))
        scores = self.transform(x) @ self.words.weight.t() + self.bias
        masked = F.cross_entropy(scores.view(-1, self.count), tokens.view(-1))
        return (masked + F.cross_entropy(follows, tokens[:, 0].clamp(max=1))).unsqueeze(0)


class Translator(nn.Module):
    """Encoder and decoder of two LSTM layers each, with attention and input feeding (OpenNMT)."""

    def __init__(self, wide: int = 500, words: int = 10000) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, wide), nn.Embedding(words, wide)
        self.encoder = nn.ModuleList([nn.LSTMCell(wide, wide), nn.LSTMCell(wide, wide)])
        self.decoder = nn.ModuleList([nn.LSTMCell(2 * wide, wide), nn.LSTMCell(wide, wide)])
        self.attend, self.mix = nn.Linear(wide, wide, False), nn.Linear(2 * wide, wide, False)
        self.generator = nn.Linear(wide, words)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory, states = [], [None, None]
        for word in self.source(source).unbind(1):
            for layer, cell in enumerate(self.encoder):
                states[layer] = cell(word, states[layer])
                word = states[layer][0]
            memory.append(word)
        context = torch.stack(memory, 1)
        feed, outputs = torch.zeros_like(memory[0]), []
        for word in self.target(target).unbind(1):
            word = torch.cat([word, feed], 1)
            for layer, cell in enumerate(self.decoder):
                states[layer] = cell(word, states[layer])
                word = states[layer][0]
            weights = torch.bmm(context, self.attend(word).unsqueeze(2)).softmax(1)
            found = torch.bmm(weights.transpose(1, 2), context).squeeze(1)
            feed = torch.tanh(self.mix(torch.cat([found, word], 1)))
            outputs.append(feed)
        return torch.stack(outputs, 1)
