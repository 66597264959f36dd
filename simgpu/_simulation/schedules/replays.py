"""`simgpu.schedule(replay=TOKEN)`: the same choices again, and an error where others come up."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu._simulation.schedules.strategies import Deviations, Strategy
from simgpu._simulation.schedules.tasks import Choice, Task
from simgpu._simulation.schedules.tokens import PREFIX, checksum, strategy_in
from simgpu.errors import ScheduleDivergedError

_WAY_OUT = (
    "Something decides that the schedule does not. Where the program has changed, its tokens are "
    "void: look for a new one by simgpu.schedules(fn) or pytest --schedules N. Otherwise take out "
    "what differs between two runs: sort what comes from a set, seed random numbers, and leave the "
    "host's time and other processes out of decisions"
)


class Replay(Strategy):
    """The choices of a token; raises ScheduleDivergedError where others come up."""

    def __init__(self, token: str) -> None:
        self.token = token
        try:
            if not isinstance(token, str):
                raise ValueError(token)
            self._told, self.count, self._checks = strategy_in(token)
        except (ValueError, LookupError, StopIteration):
            raise ValueError(
                f"replay={token!r} is no token of a schedule: it begins with {PREFIX}, and the "
                "failure that is to be repeated has printed it"
            ) from None
        super().__init__(self._told.rule)
        self.recipe = self._told.recipe
        self._ranks = self._told.ranks if isinstance(self._told, Deviations) else {}
        self._crc = self._done = 0

    def began(self, task: Task) -> None:
        self._told.began(task)

    def rank(self, options: Sequence[Task], me: Task, number: int) -> int:
        return self._told.rank(options, me, number)

    def chose(self, trace: Sequence[Choice]) -> None:
        number = len(trace) - 1
        choice = trace[-1]
        if number >= self.count:
            self._diverged(number, choice, f"the schedule had ended after {self.count} choices")
        if self._ranks.get(number, 0) >= len(choice.options):
            self._diverged(number, choice, f"choice {self._ranks[number]} of them was to be taken")
        if number + 1 in self._checks:
            self._crc = checksum(trace[self._done : number + 1], self._crc)
            if self._crc & 255 != self._checks[number + 1]:
                self._diverged(number, choice, "a choice since the last comparison was another")
            self._done = number + 1

    def _diverged(self, number: int, choice: Choice, why: str) -> None:
        options = ", ".join(map(str, choice.options))
        raise ScheduleDivergedError(
            f"the replay of {self.token} diverged between its choices {self._done} and {number}, "
            f"of {self.count}: {why}. Now thread {choice.task} stood at {choice.what!r}, and "
            f"threads {options} could go on. {_WAY_OUT}"
        )

    def ended(self, trace: Sequence[Choice]) -> None:
        """The schedule has ended; raises if the token had more choices."""
        if len(trace) < self.count:
            raise ScheduleDivergedError(
                f"the replay of {self.token} ended after {len(trace)} choices, and the schedule "
                f"had {self.count}: it diverged after choice {self._done}. {_WAY_OUT}"
            )
