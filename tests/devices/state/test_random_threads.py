"""Random numbers in whole programs: masks, threads, and all seeds and states at once.

`test_random` is about one draw; here several devices and threads draw in turn. Threads are
ordered by events, never by time.
"""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import dataparallel
from tests.support.observe import plain

seeds = st.integers(0, 2**31)


def mask(device, kind=F.dropout):
    return plain(kind(torch.ones(4, 64, device=device)) == 0)


def seed_all(devices, seed):
    torch.get_device_module(devices[0]).manual_seed_all(seed)


DROPOUTS = {
    "dropout": F.dropout,
    "alpha_dropout": lambda x: F.alpha_dropout(x, training=True),
    "dropout1d": lambda x: F.dropout1d(x.unsqueeze(-1)),
    "module": lambda x: torch.nn.Dropout(0.3)(x),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 64, 4)] * 3, None, 0.5),
}


@pytest.mark.devices(4, distinct=True)
@pytest.mark.parametrize("name", sorted(DROPOUTS))
@given(pair=st.permutations(range(4)), seed=seeds)
def test_masks_repeat_per_seed(devices, name, pair, seed):
    """Each by itself, in any order; the next mask is another."""
    one, other = devices[pair[0]], devices[pair[1]]

    def draw(device):
        return plain(DROPOUTS[name](torch.ones(4, 64, device=device)))

    torch.manual_seed(seed)
    first = [draw(one), draw(other)]
    torch.manual_seed(seed)
    again = [draw(other), draw(one)]
    assert again == first[::-1]
    assert draw(one) != first[0]


@pytest.mark.devices(4, distinct=True)
@given(seed=seeds)
def test_a_seed_gives_all_devices_the_same_masks(devices, seed):
    """Each has a stream of its own, which begins where the others' do."""
    torch.manual_seed(seed)
    assert len({str(mask(device)) for device in devices}) == 1
    mask(devices[0])
    assert mask(devices[0]) != mask(devices[1])


def drawn_in_turns(devices, order, kind):
    """What each device draws when one thread per device is given its turns in this order."""
    turns = [threading.Semaphore(0) for _ in devices]
    finished = threading.Semaphore(0)
    drawn = [[] for _ in devices]
    errors = []

    def work(slot):
        try:
            for _ in range(order.count(slot)):
                turns[slot].acquire()
                drawn[slot].append(kind(devices[slot]))
                finished.release()
        except Exception as error:
            errors.append(error)
            finished.release()

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(len(devices))]
    for thread in threads:
        thread.start()
    for slot in order:
        turns[slot].release()
        finished.acquire()
    for thread in threads:
        thread.join()
    assert errors == []
    return drawn


@pytest.mark.devices(3, distinct=True)
@given(data=st.data(), seed=seeds)
def test_the_order_of_threads_changes_nothing(devices, data, seed):
    order = data.draw(st.lists(st.integers(0, 2), max_size=8))
    other = data.draw(st.permutations(order))
    seed_all(devices, seed)
    first = drawn_in_turns(devices, order, mask)
    seed_all(devices, seed)
    assert drawn_in_turns(devices, other, mask) == first


@pytest.mark.devices(3, distinct=True)
@given(seed=seeds, draws=st.integers(1, 20))
def test_concurrent_threads_draw_the_numbers_of_single_ones(devices, seed, draws):
    def all_draws(device):
        return [plain(torch.rand(8, device=device)) for _ in range(draws)]

    seed_all(devices, seed)
    single = [all_draws(device) for device in devices]
    seed_all(devices, seed)
    together = [None] * len(devices)
    start = threading.Barrier(len(devices))

    def work(slot):
        start.wait()
        together[slot] = all_draws(devices[slot])

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == single


@pytest.mark.devices(3, distinct=True)
@given(seed=seeds, slot=st.integers(0, 2))
def test_seeds_from_the_operating_system(devices, seed, slot):
    """`seed` is about the current device, `seed_all` about all; what was drawn can be used."""
    module = torch.get_device_module(devices[0])
    seed_all(devices, seed)
    before = [plain(module.get_rng_state(device)) for device in devices]
    with module.device(devices[slot]):
        module.seed()
        chosen = module.initial_seed()
    after = [plain(module.get_rng_state(device)) for device in devices]
    assert [one != other for one, other in zip(before, after, strict=True)] == [
        k == slot for k in range(3)
    ]
    drawn = mask(devices[slot])
    with module.device(devices[slot]):
        module.manual_seed(chosen)
    assert mask(devices[slot]) == drawn
    module.seed_all()
    found = set()
    for device in devices:
        with module.device(device):
            found.add(module.initial_seed())
    assert len(found) == 1
    assert found != {chosen}


@pytest.mark.devices(3, distinct=True)
@given(seed=seeds, other=seeds)
def test_all_states_at_once(devices, seed, other):
    module = torch.get_device_module(devices[0])
    torch.manual_seed(seed)
    states = module.get_rng_state_all()
    first = [mask(device) for device in devices]
    torch.manual_seed(other)
    module.set_rng_state_all(states)
    assert [mask(device) for device in devices] == first
    assert all(state.device.type == "cpu" and state.dtype == torch.uint8 for state in states)


@pytest.mark.devices(3, distinct=True)
@given(seed=seeds, inner=seeds)
def test_forked_streams_of_all_devices(devices, seed, inner):
    """What is drawn and seeded within leaves no trace outside, on the CPU either."""
    kind = devices[0].type
    torch.manual_seed(seed)
    expected = [mask(device) for device in (torch.device("cpu"), *devices)]
    torch.manual_seed(seed)
    with torch.random.fork_rng([d.index for d in devices], device_type=kind):
        torch.manual_seed(inner)
        within = [mask(device) for device in devices]
    assert [mask(device) for device in (torch.device("cpu"), *devices)] == expected
    torch.manual_seed(inner)
    assert [mask(device) for device in devices] == within


@given(data=st.data(), seed=seeds)
def test_a_generator_of_a_device_has_a_stream_of_its_own(devices, data, seed):
    device = data.draw(st.sampled_from(devices))
    generator = torch.Generator(device=device).manual_seed(seed)
    torch.manual_seed(seed)
    before = torch.get_device_module(device).get_rng_state(device)
    first = plain(torch.rand(8, device=device, generator=generator))
    assert torch.equal(torch.get_device_module(device).get_rng_state(device), before)
    state = generator.get_state()
    second = plain(torch.rand(8, device=device, generator=generator))
    assert second != first
    generator.set_state(state)
    assert plain(torch.rand(8, device=device, generator=generator)) == second
    assert plain(torch.rand(8, device=device, generator=generator.manual_seed(seed))) == first


@pytest.mark.devices(2, distinct=True)
@given(seed=seeds, rows=st.integers(1, 4), numbers=st.integers(1, 70))
def test_replicas_of_equal_chunks_drop_the_same_units(devices, seed, rows, numbers):
    """Each draws from its own device's generator, and all of these have one seed."""
    torch.manual_seed(seed)
    model = dataparallel.DataParallel(torch.nn.Dropout(0.5), devices)
    batch = torch.ones(2 * rows, numbers, device=devices[0])
    first, second = model(batch).chunk(2)
    assert plain(first) == plain(second)
    torch.manual_seed(seed)
    assert plain(F.dropout(batch[:rows], 0.5)) == plain(first)
