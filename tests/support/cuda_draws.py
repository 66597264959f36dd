"""CUDA's random numbers once more, thread by thread and in plain Python.

Written from the description of the kernels only, without a line of `simgpu._random`: loops where
that has arrays, one thread after the other as a GPU's program is written. What both give is
compared in tests/simulator/random_numbers. Kernels are told the number of multiprocessors and of
threads on each.
"""

import math
import struct

LOW = 2**32 - 1


def philox(counter, key, rounds=10):
    """Rounds of Philox4x32 on a counter of four words and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = b >> 32 ^ c1 ^ k0, b & LOW, a >> 32 ^ c3 ^ k1, a & LOW
        k0, k1 = k0 + 0x9E3779B9 & LOW, k1 + 0xBB67AE85 & LOW
    return c0, c1, c2, c3


class Thread:
    """A thread's generator, as `curand_init(seed, thread, offset)` makes it."""

    def __init__(self, seed, thread, offset):
        self.key = seed & LOW, seed >> 32
        self.upper = thread & LOW, thread >> 32
        self.place = offset // 4

    def four(self):
        """Four words; moves on."""
        words = philox((self.place & LOW, self.place >> 32, *self.upper), self.key)
        self.place += 1
        return words


def policy(numel, unroll, gpu):
    """Blocks of 256 threads, and by how much the generator's offset grows."""
    multiprocessors, threads = gpu
    blocks = min((numel + 255) // 256, multiprocessors * (threads // 256))
    return blocks, ((numel - 1) // (256 * blocks * unroll) + 1) * 4


def grid_stride(numel, unroll, gpu, seed, offset, numbers):
    """Which number every element gets; `numbers(words)` are the `unroll` numbers of one call."""
    blocks, _ = policy(numel, unroll, gpu)
    stride = 256 * blocks * unroll
    rounded = ((numel - 1) // stride + 1) * stride
    elements = [None] * numel
    for thread in range(256 * blocks):
        if thread >= numel:
            continue  # the kernel's thread draws too, and writes nothing
        generator = Thread(seed, thread, offset)
        for first in range(thread, rounded, stride):
            drawn = numbers(generator.four())
            for lane in range(unroll):
                element = first + 256 * blocks * lane
                if element < numel:
                    assert elements[element] is None
                    elements[element] = drawn[lane]
    return elements


def side_by_side(numel, at_once, gpu, seed, offset):
    """The word behind every element in dropout's kernel for `at_once` elements a thread."""
    blocks, _ = policy(numel, 4, gpu)
    elements = [None] * numel
    for thread in range(256 * blocks):
        generator = Thread(seed, thread, offset)
        for first in range(thread * at_once, numel, 256 * blocks * at_once):
            words = []
            for _ in range((at_once + 3) // 4):
                words += generator.four()
            elements[first : first + at_once] = words[:at_once]
    return elements


def one_after_another(count, seed, offset):
    """The words of thread 0 from `offset` on, four at each place."""
    generator = Thread(seed, 0, offset)
    words = []
    while len(words) < offset % 4 + count:
        words += generator.four()
    return words[offset % 4 :][:count]


def flash_bytes(head, rows, columns, seed, offset):
    """The byte behind each weight of a head, which is number `head` of all in the batch.

    A warp has a tile of 16 rows and 32 columns. Each of its threads draws 16 bytes by seven rounds;
    they are in four results of the tensor cores, of 16 rows and 8 columns, four in each: two
    neighbours in a row, and two eight rows below.
    """
    found = [[None] * columns for _ in range(rows)]
    for row, column in ((r, c) for r in range(0, rows, 16) for c in range(0, columns, 32)):
        for lane in range(32):
            counter = offset + head * 32 + lane
            words = philox(
                (counter & LOW, counter >> 32, row // 16, column // 32),
                (seed & LOW, seed >> 32),
                rounds=7,
            )
            drawn = struct.pack("<4I", *words)
            for number, byte in enumerate(drawn):
                result, of_result = divmod(number, 4)
                r = row + lane // 4 + 8 * (of_result // 2)
                c = column + 8 * result + 2 * (lane % 4) + of_result % 2
                if r < rows and c < columns:
                    assert found[r][c] is None
                    found[r][c] = byte
    return found


def to_float(number):
    """A double rounded to a float."""
    return struct.unpack("f", struct.pack("f", number))[0]


def unit_float(word):
    return to_float(to_float(word) * 2.0**-32 + 2.0**-33)


def unit_double(low, high):
    return (low ^ high << 21) * 2.0**-53 + 2.0**-54


def four_words(words):
    return words


def two_wide(words):
    x, y, z, w = words
    return x << 32 | y, z << 32 | w


def two_doubles(words):
    x, y, z, w = words
    return unit_double(x, y), unit_double(z, w)


def four_floats(words):
    return [unit_float(word) for word in words]


def four_normals(words):
    """Box and Muller, two times; in double, since a GPU's own rounding is not known."""
    drawn = []
    for first, second in (words[:2], words[2:]):
        radius = math.sqrt(-2 * math.log(unit_float(first)))
        angle = (second * 2.0**-32 + 2.0**-33) * 2 * math.pi
        drawn += [radius * math.sin(angle), radius * math.cos(angle)]
    return drawn


def two_normals(words):
    """The same in double: four words make one pair."""
    x, y, z, w = words
    radius = math.sqrt(-2 * math.log(unit_double(x, y)))
    angle = ((z ^ w << 21) * 2.0**-52 + 2.0**-53) * math.pi
    return radius * math.sin(angle), radius * math.cos(angle)


def tossed_by_tensor(numel, seed, offset):
    """The uniform number behind every element of `bernoulli` with a tensor of probabilities."""
    elements = []
    for thread in range((numel + 3) // 4):
        elements += four_floats(Thread(seed, thread, offset).four())
    return elements[:numel]


def permutation(numel, gpu, seed, offset):
    """`randperm`, and the offset after it."""
    bits = min(64, math.ceil(math.log2(numel - (6 * numel**2 + 1) / (12 * math.log(0.9)))))
    size = 32 if bits <= 32 else 64
    span, base = 2**size - 1, -(2 ** (size - 1))
    keys = grid_stride(numel, 2, gpu, seed, offset, two_wide)
    keys = [key % span + base for key in keys]
    offset += policy(numel, 2, gpu)[1]

    def rank(number):
        key = keys[number] % 2**bits
        return (key + 2 ** (size - 1)) % 2**size if bits == size else key

    order = sorted(range(numel), key=rank)
    ranks = [rank(number) for number in order]
    for head in range(numel - 1):
        if ranks[head] != ranks[head + 1] or (head and ranks[head] == ranks[head - 1]):
            continue
        size = 1
        while head + size < numel and ranks[head + size] == ranks[head]:
            size += 1
        generator, words = Thread(seed, head, offset), []
        for last in range(size - 1, 0, -1):
            if not words:
                words = list(generator.four())
            other = words.pop(0) % (last + 1)
            one, two = head + last, head + other
            order[one], order[two] = order[two], order[one]
    return order, offset + (numel + 3) // 4 * 4
