"""What a rank tells the others of a call, in a record of one size, however much it has to say."""

from hypothesis import given
from hypothesis import strategies as st

from simgpu._distributed import process_transport
from simgpu._distributed.collectives import Call

# Shapes of many tensors, which no record has room for, and what comes at their end.
CALLS = st.builds(
    "{}{}".format,
    st.sampled_from(["all_reduce float32 (3,)", "all_to_all" + " float32 (1024, 1024)," * 40]),
    st.sampled_from(["", ", sum", ", maximum", "é" * 300]),
)
PLACES = st.builds("{}/train.py:{}".format, st.sampled_from(["", "a" * 300]), st.integers(1, 9))
DEVICES = st.sampled_from(["", "machine:0", "m" * 80 + ":1"])


def record_of(says, place, device, shown=""):
    call = Call("all_reduce", says, [], [], shown=shown)
    call.place, call.device = place, device
    return process_transport.record_of(call)


@given(says=CALLS, place=PLACES, device=DEVICES)
def test_a_record_has_one_size_and_ends_its_texts(says, place, device):
    """Of a call as much as there is room for; of a place, the line; of a device, its number."""
    record = record_of(says, place, device)
    assert len(record) == process_transport.SIZE
    _, reported, where, on = process_transport.read_record(record)
    assert says.startswith(reported.rstrip("\ufffd"))
    assert reported == says or len(reported.encode()) > 150, "there is room for that much"
    assert where == place[-200:]
    assert on == device[-60:]


@given(one=CALLS, other=CALLS, places=st.tuples(PLACES, PLACES), shown=st.tuples(CALLS, CALLS))
def test_calls_are_alike_that_say_the_same_to_the_end(one, other, places, shown):
    """Whatever each of them shows in errors."""
    reported = [
        record_of(says, place, f"m:{number}", text)
        for number, (says, place, text) in enumerate(zip((one, other), places, shown, strict=True))
    ]
    assert process_transport.are_alike(reported) == (one == other)
    agreed, texts = zip(
        *(process_transport.read_record(record)[:2] for record in reported), strict=True
    )
    assert (agreed[0] == agreed[1]) == (one == other)
    for seen, text in zip(texts, shown, strict=True):
        assert text.startswith(seen.rstrip("\ufffd"))
