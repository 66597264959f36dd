"""What PyTorch's caching allocator counts: amounts of its pools, now, at most, come and gone.

Names and rules are those of torch.cuda.memory_stats (c10/core/CachingDeviceAllocator.h).
"""

from __future__ import annotations

POOLS = ("small_pool", "large_pool")  # by number
ALL = len(POOLS)  # and the number of both together
KINDS = ("current", "peak", "allocated", "freed")


class Amount:
    """One amount of each pool and of both: what it is, the most it was, how much came and went."""

    __slots__ = ("_at_reset", "_came", "_now", "_peaks")

    def __init__(self) -> None:
        self._now, self._peaks = [0, 0], [0, 0, 0]
        # What came since the last reset, and what there was then.
        self._came, self._at_reset = [0, 0], [0, 0]

    def change(self, pool: int, by: int) -> None:
        """There are so many more in a pool, or fewer."""
        now = self._now
        now[pool] = amount = now[pool] + by
        if by > 0:
            self._came[pool] += by
            peaks = self._peaks
            if amount > peaks[pool]:
                peaks[pool] = amount
            amount = now[0] + now[1]
            if amount > peaks[ALL]:
                peaks[ALL] = amount

    def undo(self, pool: int, by: int) -> None:
        """Take back that so many came or went; a peak remains."""
        self._now[pool] -= by
        if by > 0:
            self._came[pool] -= by

    def current(self, number: int = ALL) -> int:
        """What there is in a pool, or in both."""
        return sum(self._now) if number == ALL else self._now[number]

    def peak(self, number: int = ALL) -> int:
        """The most that there was since the last reset of peaks."""
        return self._peaks[number]

    def allocated(self, number: int = ALL) -> int:
        """What came since the last reset of totals."""
        return sum(self._came) if number == ALL else self._came[number]

    def freed(self, number: int = ALL) -> int:
        """What went since the last reset of totals."""
        if number == ALL:
            return self.freed(0) + self.freed(1)
        return self._came[number] - self._now[number] + self._at_reset[number]

    def reset_peak(self) -> None:
        """Let the most begin again at what there is."""
        self._peaks = [*self._now, sum(self._now)]

    def reset_totals(self) -> None:
        """Let what came and went begin again at zero."""
        self._came, self._at_reset = [0, 0], [*self._now]


class Active:
    """An amount with what waits, after it was freed, for other streams.

    Args:
        used: the amount of what is in use.
        waiting: the amount of what waits.
    """

    __slots__ = ("_peaks", "_used", "_waiting")

    def __init__(self, used: Amount, waiting: Amount) -> None:
        self._used, self._waiting = used, waiting
        self._peaks = [0, 0, 0]  # while something waited

    def look(self) -> None:
        """Something waits, and something was allocated: see if there is more than ever."""
        for number in range(ALL + 1):
            self._peaks[number] = max(self._peaks[number], self.current(number))

    def current(self, number: int = ALL) -> int:
        """What there is in a pool, or in both."""
        return self._used.current(number) + self._waiting.current(number)

    def peak(self, number: int = ALL) -> int:
        """The most that there was since the last reset of peaks."""
        return max(self._peaks[number], self._used.peak(number))

    def allocated(self, number: int = ALL) -> int:
        """What came since the last reset of totals."""
        return self._used.allocated(number)

    def freed(self, number: int = ALL) -> int:
        """What went since the last reset of totals."""
        used, waiting = self._used, self._waiting
        return used.freed(number) - waiting.allocated(number) + waiting.freed(number)

    def reset_peak(self) -> None:
        """Let the most begin again at what there is."""
        self._peaks = [self.current(number) for number in range(ALL + 1)]

    def reset_totals(self) -> None:
        """Let what came and went begin again at zero: those of its parts do."""
