"""`Tensor.chunk`'s sizes, computed independently: how many rows each replica gets."""


def chunk_sizes(batch: int, n: int) -> list[int]:
    """The rule of the hardware, from the row's point of view: row r goes to chunk r // size."""
    if batch == 0:
        return [0] * n
    size = batch // n + (batch % n > 0)
    owners = [row // size for row in range(batch)]
    return [owners.count(chunk) for chunk in range(owners[-1] + 1)]
