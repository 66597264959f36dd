"""The words of torch.cuda: of its functions' results, and of the errors that calls raise.

A case is a line of `CALLS`, an expression in which `module` is torch.cuda or torch.simgpu, and
`ones(1, 2, 3)` a 2 x 3 tensor on device 1.
"""

import numpy
import torch
import torch.nn.functional as F

from tests.support.cuda_code.sides import outcome, same_words

CALLS = (
    "torch.empty(1, device=device(9))",
    "torch.ones(1).to(str(device(9)))",
    "module.set_device(9)",
    "module.set_device(-1)",
    "module.device(9).__enter__()",
    "module.get_device_properties(9)",
    "module.get_device_properties(-2)",
    "module.get_device_name(9)",
    "module.get_device_capability(9)",
    "module.memory_allocated(9)",
    "len(module.memory_stats(9))",
    "module.reset_peak_memory_stats(9)",
    "module.mem_get_info(9)",
    "module.synchronize(9)",
    "module.current_stream(9)",
    "module.default_stream(9)",
    "module.Stream(device=9)",
    "module.get_rng_state(9)",
    "module.set_rng_state(torch.zeros(3, dtype=torch.uint8), 0)",
    "module.set_rng_state(torch.zeros(16), 0)",
    "module.set_rng_state(torch.tensor([1]+[0]*7+[3]+[0]*7, dtype=torch.uint8), 0)",
    "generator().set_offset(3)",
    "generator().set_offset(-4)",
    "after(generator(), lambda g: g.set_offset(8)).get_offset()",
    "generator().initial_seed()",
    "generator().manual_seed(-1).initial_seed()",
    "generator().set_state(torch.zeros(3, dtype=torch.uint8))",
    "generator().get_state().tolist()",
    "torch.rand(2, device=device(0), generator=generator(1)).shape",
    "torch.rand(2, device=device(0), generator=torch.Generator())",
    "torch.rand(2, generator=generator())",
    "torch.empty(2, device=device(1)).uniform_(generator=generator(0)).shape",
    "torch.randperm(4, device=device(0), generator=torch.Generator())",
    "timer().elapsed_time(timer())",
    "times(False, True)",
    "times(False, False)",
    "times(True, True)",
    "times_of_two_devices()",
    "after(timer(), lambda e: e.record()).elapsed_time(timer())",
    "module.Event().query()",
    "module.Event().wait()",
    "module.Event().synchronize()",
    "after(module.Event(), "
    "lambda e: e.record(module.current_stream(0))).record(module.current_stream(1))",
    "str(module.Event().device)",
    "repr(module.Event())",
    "repr(module.current_stream(0))",
    "[module.Stream(priority=p).priority for p in (-9, -5, -1, 0, 1, 9)]",
    "module.Stream.priority_range()",
    "len({module.Stream(device=0).stream_id for _ in range(40)})",
    "torch.empty(big, dtype=torch.uint8, device=device(0))",
    "(torch.empty(2**30, dtype=torch.uint8, device=device(0)), torch.empty(big, "
    "dtype=torch.uint8, device=device(0)))",
    "module.set_per_process_memory_fraction(1.5)",
    'module.set_per_process_memory_fraction("a")',
    "module.set_per_process_memory_fraction(0.5, 9)",
    "ones(0, 2).pin_memory()",
    "ones(0, 2).is_pinned()",
    "ones(0, 2).numpy()",
    "numpy.array(ones(0, 2))",
    "ones(0, 2).is_shared()",
    "ones(0, 2, 3) @ ones(1, 3, 2)",
    "ones(0, 2, 3) @ torch.ones(3, 2)",
    "F.linear(ones(0, 2, 3), ones(1, 3, 3))",
    "torch.cat([ones(0, 2), ones(1, 2)])",
    "torch.stack([ones(0, 2), torch.ones(2)])",
    "ones(0, 3)[torch.tensor([0, 1])].shape",
    "ones(0, 3)[torch.tensor([0, 1], device=device(1))].shape",
    "torch.ones(3)[torch.tensor([0, 1], device=device(0))].shape",
    "torch.where(torch.tensor([True], device=device(0)), ones(1, 1), ones(0, 1))",
    "F.embedding(torch.tensor([0], device=device(1)), ones(0, 3, 2))",
    "F.embedding(torch.tensor([0]), ones(0, 3, 2))",
    "F.conv2d(ones(0, 1, 1, 3, 3), torch.ones(1, 1, 2, 2))",
    "F.conv2d(ones(0, 1, 1, 3, 3), ones(1, 1, 1, 2, 2))",
    "F.batch_norm(ones(0, 2, 3), torch.ones(3), torch.ones(3), training=True)",
    "F.layer_norm(ones(0, 2, 3), (3,), torch.ones(3), torch.ones(3))",
    "F.nll_loss(ones(0, 2, 3), torch.tensor([0, 1]))",
    "F.cross_entropy(ones(0, 2, 3), torch.tensor([0, 1], device=device(1)))",
    "ones(0, 3).scatter_(0, torch.tensor([0]), 1.0)",
    "ones(0, 3).gather(0, torch.tensor([0], device=device(1)))",
    "torch.add(ones(0, 2), 1, out=ones(1, 2))",
    "torch.add(ones(0, 2), 1, out=torch.ones(2))",
    "ones(0, 2).add_(ones(1, 2))",
    "(ones(0, 2) + torch.tensor(1.0)).device.index",
    "(ones(0, 2) + torch.tensor(1., device=device(1))).device",
    "(torch.ones(2) + torch.tensor(1., device=device(1))).device",
    "ones(0, 2).set_(ones(1, 2).untyped_storage())",
    'setattr(ones(0, 2), "data", torch.ones(2))',
    'setattr(ones(0, 2), "grad", ones(1, 2))',
    "ones(0, 2).copy_(torch.ones(3))",
    "ones(0, 2).resize_(-1)",
    "torch.addmm(torch.ones(2, 2), ones(0, 2, 3), ones(0, 3, 2))",
    "torch.bmm(ones(0, 2, 3, 4), ones(0, 2, 3, 4))",
    "ones(0, 2, 3) @ ones(0, 2, 3)",
    "ones(0, 2, 3) @ ones(0, 3, 2, dtype=torch.float16)",
    "ones(0, 2, 3, dtype=torch.int64) @ ones(0, 3, 2, dtype=torch.int64)",
    "F.linear(ones(0, 2, 3, dtype=torch.int32), ones(0, 3, 3, dtype=torch.int32))",
    "torch._foreach_add([ones(0, 2)], [ones(1, 2)])",
    "[t.device.type for t in torch._foreach_add([ones(0, 2)], [torch.ones(2)])]",
    "torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(ones(0, 2))], 1.0)",
    "torch.nn.LSTM(2, 3).to(device(0))(ones(1, 4, 1, 2))",
    "torch.nn.LSTM(2, 3).to(device(0))(torch.ones(4, 1, 2))",
    "torch.sparse.mm(torch.eye(2).to_sparse().to(device(0)), ones(1, 2, 2))",
    "sorted(module.memory_snapshot()[0])",
    'sorted(module.memory_snapshot()[0]["blocks"][0])',
    "module.ipc_collect()",
    "(module.can_device_access_peer(0, 1))",
    "(module.can_device_access_peer(0, 0))",
    "(module.can_device_access_peer(0, 9))",
)


def _names(side):
    def after(thing, change):
        change(thing)
        return thing

    def timer():
        return side.module.Event(enable_timing=True)

    def times(*timed):
        events = [side.module.Event(enable_timing=one) for one in timed]
        for event in events:
            event.record()
        side.module.synchronize()
        return events[0].elapsed_time(events[1]) >= 0

    def times_of_two_devices():
        events = [timer(), timer()]
        for index, event in enumerate(events):
            with side.module.device(index):
                event.record()
        return events[0].elapsed_time(events[1]) >= 0

    return {
        "torch": torch,
        "numpy": numpy,
        "F": F,
        "module": side.module,
        "device": side.device,
        "ones": lambda index, *size, dtype=None: torch.ones(
            *size, device=side.device(index), dtype=dtype
        ),
        "generator": lambda index=0: torch.Generator(side.device(index)),
        "after": after,
        "timer": timer,
        "times": times,
        "times_of_two_devices": times_of_two_devices,
        "big": 200 * 2**30,
    }


def cases(model):
    for call in CALLS:
        yield {"call": call, "model": model}


def run(case, side):
    """The text of the result, or type and words of the error."""
    code = compile(case["call"], "<call>", "eval")
    with side.values():
        return outcome(lambda: eval(code, _names(side)))


agree = same_words
