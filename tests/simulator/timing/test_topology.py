"""Which links a copy takes, and what the named machines look like."""

import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from simgpu._clock.topology import Topology, topology_of
from simgpu._config.gpus import find

PLACES = [0, 1, "host", "switch"]
OF_DEVICES = "switch", "adapter"  # of which each device has its own
THROUGH_ANOTHER = [(0, 1, 1e9), (1, "host", 1e9)]
WRONG = st.one_of(
    *(st.none(), st.booleans(), st.text(), st.tuples(st.floats()), st.complex_numbers()),
    st.floats(max_value=0.0, exclude_max=True),
    st.integers(max_value=-1),
    st.sampled_from([float("inf"), float("nan")]),
)
links = st.lists(
    st.tuples(
        st.sampled_from(list(itertools.combinations(PLACES, 2))), st.sampled_from([1.0, 2.0, 4.0])
    ).map(lambda link: simgpu.Link(*link)),
    min_size=4,
    max_size=9,
)


def ways(joined, source, target, passed=()):
    """All ways without a circle, which pass no device: the bandwidths of their links."""
    if source == target:
        yield []
        return
    if passed and isinstance(source, int):
        return
    for link in joined:
        if source in link.ends:
            end = link.ends[1 - link.ends.index(source)]
            if end not in passed:
                for rest in ways(joined, end, target, (*passed, source)):
                    yield [link.bandwidth, *rest]


@given(joined=links, source=st.integers(0, 1), target=st.sampled_from([0, 1, "host"]))
def test_a_route_is_the_widest_of_the_shortest(joined, source, target):
    route = Topology(joined).route(source, target)
    all_ways = list(ways(joined, source, target))
    if not all_ways:
        assert route is None
    elif source != target:
        best = min(all_ways, key=lambda way: (len(way), -min(way)))
        assert len(route.hops) == len(best)
        assert route.bandwidth == min(best)


def test_named_topologies():
    a100 = [find("A100")]
    nvlink, pcie = topology_of("nvlink", 2 * a100), topology_of("pcie", 2 * a100)
    assert (nvlink.route(0, 1).bandwidth, nvlink.route(0, 1).latency) == (300e9, 3.4e-6)
    assert (pcie.route(0, 1).bandwidth, pcie.route(0, 1).latency) == (32e9, 5.7e-6)
    assert nvlink.route(0, "host").bandwidth == 32e9
    dgx = topology_of("DGX-A100", 8 * a100)
    hops = [set(dgx.route(device, "host").hops) for device in range(3)]
    assert hops[0] & hops[1]  # one PCIe switch for two
    assert not hops[0] & hops[2]
    two = topology_of("2x8", 16 * a100)
    assert two.route(0, 7).bandwidth == 300e9
    assert two.route(0, 8).bandwidth == 25e9
    assert two.route(0, 8).latency == pytest.approx(14.0e-6 + 5.7e-6)
    assert (two.host_of(7), two.host_of(8)) == ("host 0", "host 1")
    plain = topology_of("2x2", [find("T4")] * 4)  # no NVLink: through the host, not the network
    assert plain.route(0, 1).bandwidth == plain.route(2, 3).bandwidth == 16e9


@given(
    machines=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    switched=st.booleans(),
    adapters=st.booleans(),
)
@example(machines=[0, 1], switched=False, adapters=False)
def test_a_device_copies_from_the_host_of_its_machine(machines, switched, adapters):
    """However the machines, which have so many devices each, are joined by the network."""
    joined, own = [], {}
    for number, count in enumerate(machines):
        host = f"host {number}"
        joined.append((host, "network"))
        for device in range(len(own), len(own) + count):
            own[device] = host
            ways = [["switch"] * switched + [host], ["adapter", "network"]]
            for way in ways if adapters else ways[:1]:
                places = [f"{place} {device}" if place in OF_DEVICES else place for place in way]
                joined += itertools.pairwise([device, *places])
    topology = Topology([simgpu.Link(ends, 1e9) for ends in joined])
    assert {device: topology.host_of(device) for device in own} == own


@pytest.mark.parametrize(
    ("asked", "count", "words"),
    [
        ("torus", 1, "pcie, nvlink, dgx-a100, 2x8"),
        ("dgx-a100", 9, "has 8 devices, and there are 9"),
        ("1x2", 3, "has 2 devices, and there are 3"),
        ([(0, 1, 1e9)], 2, "no way from device 0 to the host"),
        ([(0, "host", 1e9)], 2, "links device 0 - the host has no way from device 0 to device 1"),
        (THROUGH_ANOTHER, 2, "no way from device 0 to the host"),
        ([(0, "host", 0.0)], 1, "bandwidth=0.0: a number of bytes per second, above 0"),
        ([], 2, r"links \(none\) has no way"),
        ([(0, 0, 1e9)], 1, "two different ends"),
        ([(-1, "host", 1e9)], 1, "numbered from 0 on, got -1"),
        ([("simgpu", "host", 1e9)], 1, "say 'simgpu:0'"),
    ],
)
def test_a_topology_that_does_not_fit_is_refused(asked, count, words):
    with pytest.raises(ValueError, match=words):
        topology_of(asked, [find("A100")] * count)


@pytest.mark.parametrize(
    "asked", [None, 3, ["nvlink"], [(0, 1)], [(0, None, 1e9)], [(0, 1.0, 1e9)]]
)
def test_invalid_topology_is_refused(asked):
    with pytest.raises(TypeError, match=r"a topology is one of pcie|a link ends at a device"):
        topology_of(asked, [find("A100")])


NAMES_OF_PLACES = {0: [0, "simgpu:0"], "host": ["host", "cpu"], "switch": ["switch"]}
DEVICES = ("simgpu:0", "cpu")  # which may be named as torch.device, too


@given(places=st.permutations(list(NAMES_OF_PLACES)), names=st.data(), as_devices=st.booleans())
def test_the_end_of_a_link_has_several_names(simulated, places, names, as_devices):
    ends = [names.draw(st.sampled_from(NAMES_OF_PLACES[place])) for place in places[:2]]
    if as_devices:
        ends = [torch.device(end) if end in DEVICES else end for end in ends]
    assert Topology([simgpu.Link(tuple(ends), 1e9)]).route(*places[:2]) is not None


AMOUNTS = {
    "bandwidth": lambda value: simgpu.Link((0, 1), value),
    "latency": lambda value: simgpu.Link((0, 1), 1e9, value),
    "host_cost": lambda value: simgpu.clock("A100", host_cost=value).__enter__(),
    "launch_gap": lambda value: simgpu.clock("A100", launch_gap=value).__enter__(),
}


@pytest.mark.parametrize("name", AMOUNTS)
@given(value=WRONG)
def test_invalid_amount_is_refused(simulated, name, value):
    with pytest.raises((TypeError, ValueError), match=f"^{name}=.*: a number of .* is expected$"):
        AMOUNTS[name](value)


def test_nvlink_on_a_gpu_without_it_is_refused():
    with pytest.raises(ValueError, match="'T4' has no NVLink"):
        topology_of("nvlink", [find("T4")])
