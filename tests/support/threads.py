"""Call a function in a thread of its own, or in as many threads as there are ranks."""

import threading
from concurrent.futures import ThreadPoolExecutor


def in_thread(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def together(count, function):
    """What `function(rank)` returns in as many threads."""
    results = [None] * count

    def run(rank):
        try:
            results[rank] = function(rank)
        except AssertionError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert None not in results, "a rank has not come back"
    for result in results:
        if isinstance(result, AssertionError):
            raise result
    return results
