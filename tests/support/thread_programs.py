"""Small programs of several threads, which note in which order things happen."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from hypothesis import strategies as st

OPERATIONS = ("lock", "rlock", "sleep", "put", "wait", "set", "launch", "copy", "pool")


def programs(threads=3, length=3):
    """For each thread the names of what it does, one after the other."""
    operations = st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=length)
    return st.lists(operations, min_size=2, max_size=threads)


class Program:
    """Runs one such program; `run` returns what was noted, in its order."""

    def __init__(self, threads, device):
        self.threads, self.device = threads, device

    def run(self):
        self.noted, self.lock, self.rlock = [], threading.Lock(), threading.RLock()
        self.queue, self.event = queue.Queue(), threading.Event()
        self.tensor = torch.zeros(2, device=self.device)
        running = [
            threading.Thread(target=self._thread, args=(number, operations))
            for number, operations in enumerate(self.threads)
        ]
        for thread in running:
            thread.start()
        for _ in range(sum(operations.count("put") for operations in self.threads)):
            self.noted.append(self.queue.get())
        for thread in running:
            thread.join()
        del self.tensor  # or its memory would still be taken in the next run
        return self.noted, [thread.name for thread in running], time.monotonic()

    def _thread(self, number, operations):
        for operation in operations:
            self.noted.append((number, operation, getattr(self, f"_{operation}")(number)))

    def _lock(self, number):
        with self.lock:
            return self._within(number, "lock")

    def _rlock(self, number):
        with self.rlock, self.rlock:
            return self._within(number, "rlock")

    def _within(self, number, lock):
        for word in ("in", "out"):
            self.noted.append((number, lock, word))
            self.tensor + 1  # where another thread may go on

    def _sleep(self, number):
        time.sleep(0.1 * (number + 1))
        return time.perf_counter()

    def _put(self, number):
        self.queue.put((number, "item"))

    def _wait(self, number):
        return self.event.wait(0.5)

    def _set(self, number):
        self.event.set()

    def _launch(self, number):
        self.tensor.add_(1)
        return float(self.tensor.sum())

    def _copy(self, number):
        return (self.tensor.cpu() + number).tolist()

    def _pool(self, number):
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(self._launch, number) for _ in range(2)]
            return [future.result() for future in as_completed(futures)]
