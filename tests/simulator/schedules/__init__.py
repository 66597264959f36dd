"""Which thread runs when: schedules of a seed, deadlocks, replays, exploration."""
