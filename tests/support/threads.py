"""Call functions in threads: one, several at once, or one for each rank."""

import threading
from concurrent.futures import ThreadPoolExecutor


def in_thread(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def together(count, function):
    """What `function(rank)` returns in as many threads; it must not be None."""
    results, errors = [None] * count, []

    def run(rank):
        try:
            results[rank] = function(rank)
        except Exception as error:
            results[rank] = error
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:  # of which others may not have come back
        raise errors[0]
    assert all(result is not None for result in results), "a rank has not come back"
    return results
