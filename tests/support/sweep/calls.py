"""One operator on the CPU and on a device, with equal arguments and equal random numbers."""

import torch

from tests.support.sweep import entries, known
from tests.support.sweep.compare import attempt, changed, difference
from tests.support.sweep.mirror import Mirror


def both(sample, device, function):
    """Call `function` on copies of a sample, on the CPU and on `device`, with equal streams.

    Returns the two copies and the two answers, or errors.
    """
    copies = [Mirror(place)(sample) for place in (torch.device("cpu"), device)]
    answers = []
    for copy in copies:
        seed()
        answers.append(attempt(lambda copy=copy: function(copy)))
    return copies, answers


def seed():
    """Put all streams at the same point; `torch.manual_seed` formats three stacks for each call."""
    torch.default_generator.manual_seed(1)
    torch.simgpu.manual_seed_all(1)


def compare_forward(device, name, dtype, **limits):
    """Raise unless the forward pass of an operator is the CPU's, or differs as it is known to.

    `limits` are those of `entries.samples`.
    """
    case = f"forward {name} {dtype}"
    entry = entries.ENTRIES[name]
    values = known.values_of(case)

    def finding(sample):
        if not Mirror(device).reaches_device(sample):
            return None
        copies, answers = both(sample, device, lambda s: entry.op(s[0], *s[1], **s[2]))
        found = difference(*answers, device, values=values)
        return found or changed(*copies, device, values=values)

    samples = entries.samples(entry, getattr(torch, dtype), **limits)
    known.judge(case, map(finding, samples))
