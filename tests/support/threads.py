"""Call a function in a thread of its own."""

from concurrent.futures import ThreadPoolExecutor


def in_thread(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()
