"""Faults planted in who is asked for by a number, on which device, and in what waits for calls."""

from functools import partial

from simgpu.errors import CollectiveMismatchError
from tests.distributed import test_collectives as collectives
from tests.distributed import test_data_parallel as data_parallel
from tests.distributed import test_devices_of_groups as devices
from tests.distributed import test_groups_of_ranks as groups
from tests.distributed import test_memory_formats as formats
from tests.distributed import test_odd_calls as odd
from tests.distributed import test_reductions as reductions
from tests.distributed import test_roots_and_peers as numbered
from tests.distributed import test_sharded as sharded
from tests.distributed import test_tags as tags
from tests.distributed import test_transport as transport
from tests.distributed import test_works as works
from tests.simulator.timing import test_collectives as timed
from tests.support.plant import fault

ROOTS_AND_PEERS = [
    fault(
        "gloo pairs messages of all tags",
        "simgpu._distributed.kernels:_looked_at",
        "return tag",
        "return 0",
        tags.test_ranks_that_are_threads_pair_messages_as_the_backend_does,
    ),
    fault(
        "NCCL looks at tags",
        "simgpu._distributed.kernels:_looked_at",
        'if group.kind == "nccl":',
        "if False:",
        tags.test_ranks_that_are_threads_pair_messages_as_the_backend_does,
    ),
    fault(
        "messages of one tag wait for those of another",
        "simgpu._distributed.calls:Call.row",
        " {self.tag}",
        "",
        tags.test_ranks_that_are_processes_pair_messages_by_tag,
    ),
    fault(
        "the clock pairs messages of all tags",
        "simgpu._simulation.timing.groups:_key",
        "about.tag, ",
        "",
        timed.test_the_clock_pairs_messages_by_tag,
    ),
    fault(
        "what a rank sends to itself has no tag",
        "simgpu._distributed.loopback:Loopback._with",
        "setdefault(tag,",
        "setdefault(0,",
        tags.test_ranks_that_are_processes_pair_messages_by_tag,
        raises=BaseException,
    ),
    fault(
        "tensors of the host are on the current device",
        "simgpu._distributed.issue:issue",
        "and not on_host",
        "",
        devices.test_tensors_of_the_host_are_on_no_device,
        raises=Exception,
    ),
    fault(
        "a monitored barrier waits for nobody",
        "simgpu._distributed.kernels:monitored_barrier_",
        'issue("monitored_barrier_", group, [call], [tensor], False, [], index)',
        "pass",
        groups.test_a_monitored_barrier_is_a_barrier,
    ),
    fault(
        "channels_last is refused",
        "simgpu._distributed.rules:_order",
        "if memory_format is not None and",
        "if False and",
        partial(formats.test_channels_last_travels, name="all_reduce"),
        raises=Exception,
    ),
    fault(
        "what was transposed is sent to nobody",
        "simgpu._distributed.rules:host_aliases",
        'between_two and kind == "nccl"',
        "False",
        formats.test_any_dense_tensor_is_sent_to_one_rank,
        raises=Exception,
    ),
    fault(
        "no rank says how its tensor lies in memory",
        "simgpu._distributed.rules:layout",
        "if order is None:",
        "if True:",
        formats.test_ranks_whose_tensors_lie_otherwise_are_told_so,
    ),
    fault(
        "tensors of one call may lie otherwise",
        "simgpu._distributed.rules:layout",
        "if len(orders) > 1:",
        "if False:",
        partial(formats.test_an_output_that_lies_otherwise_is_refused, name="all_gather"),
    ),
    *(
        fault(
            f"{name} says not how its tensors lie in memory",
            f"simgpu._distributed.{where}",
            right,
            wrong,
            partial(formats.test_a_collective_tells_ranks_whose_tensors_lie_otherwise, name=name),
        )
        for name, where, right, wrong in (
            (
                "all_reduce",
                "reducing:allreduce_coalesced_",
                "{rules.layout([tensor])}",
                "",
            ),
            (
                "scatter",
                "moving:scatter_",
                "says += layout([*outs, *ins[0]] if group.rank == root else outs)",
                "pass",
            ),
        )
    ),
    fault(
        "an output may lie otherwise than what is gathered",
        "simgpu._distributed.moving:_into_one",
        "layout([out, mine])",
        "layout([mine])",
        partial(
            formats.test_an_output_that_lies_otherwise_is_refused, name="all_gather_into_tensor"
        ),
    ),
    *(
        fault(
            f"what is flat has a format: {name}",
            "simgpu._distributed.rules:layout",
            "if tensor.dim() != 1 and tensor.numel()",
            "if tensor.numel()",
            partial(formats.test_what_is_flat_has_what_lies_in_memory, name=name),
            raises=ValueError,
        )
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor")
    ),
    fault(
        "what is flat is filled by dims",
        "simgpu._distributed.rules:host_aliases",
        "alias if order is None else alias.permute(order)",
        "alias",
        partial(formats.test_what_is_flat_has_what_lies_in_memory, name="all_gather_into_tensor"),
    ),
    *(
        fault(
            f"{name} in a coalesced gather",
            "simgpu._distributed.moving:allgather_coalesced_",
            right,
            wrong,
            formats.test_each_tensor_of_a_coalesced_gather_has_its_own_format,
            raises=error,
        )
        for name, right, wrong, error in (
            (
                "all tensors have one format",
                "layout([ins[k], *outs])",
                "layout([*ins, *outs])",
                ValueError,
            ),
            (
                "no rank says how a tensor lies in memory",
                "call.add(layout([ins[k], *outs]))",
                "pass",
                None,
            ),
            (
                "a rank says how the first tensor lies in memory",
                "layout([ins[k], *outs])",
                "layout([ins[0], *outs])",
                ValueError,
            ),
        )
    ),
    fault(
        "dims of one element are sorted by their strides",
        "simgpu._distributed.rules:_order",
        "(1, -strides[dim]) if sizes[dim] > 1 else (0, dim)",
        "-strides[dim]",
        formats.test_how_far_it_is_to_the_next_of_one_says_nothing,
        raises=Exception,
    ),
    fault(
        "no rows lie otherwise than some",
        "simgpu._distributed.rules:layout",
        "and tensor.numel()",
        "",
        formats.test_no_rows_lie_like_any_others,
        raises=Exception,
    ),
    fault(
        "what has gaps is sent to one rank",
        "simgpu._distributed.rules:_order",
        'raise ValueError("Tensors for P2P must be non-overlapping and dense")',
        "return None",
        partial(formats.test_what_has_gaps_or_overlaps_is_sent_to_nobody, gaps=lambda x: x[:, ::2]),
        raises=Exception,
    ),
    fault(
        "a single element has the stride of many",
        "simgpu._distributed.calls:as_bytes",
        "as_strided((tensor.numel(),), (1,))",
        "reshape(-1)",
        odd.test_a_single_element_has_any_stride,
        raises=RuntimeError,
    ),
    fault(
        "what a call reads begins where its storage does",
        "simgpu._distributed.calls:as_bytes",
        "(1,))",
        "(1,), 0)",
        odd.test_a_single_element_has_any_stride,
    ),
    fault(
        "a call overwrites what it has not read",
        "simgpu._distributed.communicators:Communicator.submit",
        "call.read_apart()",
        "pass",
        odd.test_a_call_reads_what_it_overwrites_before,
    ),
    fault(
        "what begins behind an output is apart from it",
        "simgpu._distributed.calls:overlap",
        "first < second + out.nbytes",
        "first <= second",
        odd.test_what_has_a_byte_in_common_overlaps,
    ),
    fault(
        "what begins before an output is apart from it",
        "simgpu._distributed.calls:overlap",
        "second < first + tensor.nbytes",
        "second <= first",
        odd.test_what_has_a_byte_in_common_overlaps,
    ),
    fault(
        "a rank that waits for a while lets no other run",
        "simgpu._distributed.works:Pending._wait",
        "self._waits is None",
        "self._waits is None or seconds is not None",
        odd.test_no_time_passes_while_other_ranks_run,
        raises=Exception,
    ),
    fault(
        "a rank's send to itself goes by gloo",
        "simgpu._distributed.gloo:Transport._perform",
        "between_two and call.peer == self._backend.rank()",
        "False",
        odd.test_a_rank_of_a_process_sends_to_itself,
        raises=BaseException,
    ),
    fault(
        "what a rank sends to itself is what it has by then",
        "simgpu._distributed.loopback:Loopback._send",
        "as_bytes(call.ins[0]).clone()",
        "as_bytes(call.ins[0]).fill_(1)",
        odd.test_a_rank_of_a_process_sends_to_itself,
    ),
    fault(
        "a rank takes whatever it sends to itself",
        "simgpu._distributed.loopback:Loopback._receive",
        "agreement.check(self._group, call.number, [self._rank] * 2, asked)",
        "data = data[:1].expand(call.outs[0].nbytes)",
        odd.test_what_a_rank_sends_to_itself_is_what_it_receives,
        raises=ValueError,
    ),
    fault(
        "a graph holds the calls of its capture",
        "simgpu._distributed.issue:_check_capture",
        "streams.captured and",
        "False and",
        odd.test_a_call_that_is_captured_is_refused,
        raises=BaseException,
    ),
    fault(
        "all ranks capture on the device of the first",
        "simgpu._ranks.variables:_there",
        "in _TABLE.items():",
        'in _TABLE.items():\n        if name == "torch.cuda.graphs":\n            continue',
        odd.test_each_rank_captures_on_its_own_device,
        raises=BaseException,
    ),
    fault(
        "ranks may gather to other roots",
        "simgpu._distributed.moving:gather_",
        'f"gather {described(ins)} to {root}"',
        'f"gather {described(ins)}"',
        partial(numbered.test_ranks_that_name_other_roots_are_told_so, name="gather"),
        raises=BaseException,
    ),
    fault(
        "who comes to a call that has failed changes what is gone through",
        "simgpu._ranks.meeting:Transport._meet_all",
        "list(meeting.here.values())",
        "meeting.here.values()",
        partial(numbered.test_ranks_that_name_other_roots_are_told_so, name="scatter"),
        raises=RuntimeError,
    ),
    fault(
        "of a batch the last call lands alone",
        "simgpu._distributed.works:Work._land",
        "for pending in self._pending:",
        "for pending in list(self._pending)[-1:]:",
        numbered.test_all_that_a_batch_receives_is_there,
    ),
    fault(
        "a peer in a part of a group is told by its number there",
        "simgpu._distributed.issue:issue",
        "peer=group.ranks[calls[0].peer] if",
        "peer=calls[0].peer if",
        numbered.test_the_peer_of_a_send_is_told_by_its_global_rank,
    ),
    fault(
        "a mean of complex numbers is their sum",
        "simgpu._distributed.reductions:Reduction.prepare",
        'if self.name == "AVG" and not _is_integral(dtype):',
        'if self.name == "AVG" and dtype.is_floating_point:',
        collectives.test_a_mean_of_complex_numbers_is_one_of_both_parts,
    ),
    fault(
        "the factor of a mean has more digits than its dtype",
        "simgpu._distributed.reductions:Reduction.prepare",
        "mine * torch.tensor(factor, dtype=dtype.to_real() if dtype.is_complex else dtype)",
        "mine * factor",
        reductions.test_a_factor_is_a_number_of_the_dtype,
    ),
    fault(
        "ranks that are processes share a device",
        "simgpu._distributed.gloo:Transport._compare",
        "if not records.are_alike(told) or call.number == call.since:",
        "if not records.are_alike(told):",
        transport.test_two_ranks_on_one_device_are_told_so_in_their_first_call,
    ),
    *(
        fault(
            f"ranks share a device, and are told so by no {name}",
            "simgpu._ranks.meeting:Transport._meet_peer",
            "agreement.Asked.of(each) for",
            'agreement.Asked.of(each)._replace(device="") for',
            partial(devices.test_two_ranks_send_between_devices_of_their_own, name=name),
        )
        for name in devices.TO_A_PEER
    ),
    fault(
        "after the first send ranks that are processes share a device",
        "simgpu._distributed.gloo:Transport._meet_peer",
        "agreement.check(self._group, call.number, ranks, [*map(records.read, (mine, theirs))])",
        "self._compare(call, [mine, theirs])",
        transport.test_two_processes_send_between_devices_of_their_own,
    ),
    fault(
        "a rank that sends to itself is told that it shares a device",
        "simgpu._distributed.agreement:_check_devices",
        "taken.get(device, rank) != rank",
        "device in taken",
        devices.test_a_rank_sends_to_itself_on_one_device,
        raises=CollectiveMismatchError,
    ),
    fault(
        "a call that waits for other ranks holds up another thread",
        "simgpu._distributed.communicators:Communicator.submit",
        """    self.transport.submit(pending, awaited=not asynchronous)
""",
        """        self.transport.submit(pending, awaited=not asynchronous)
""",
        transport.test_a_call_that_waits_for_other_ranks_keeps_no_other_thread_from_calling,
    ),
    fault(
        "a rank may go to another device alone",
        "simgpu._distributed.communicators:Communicator._tell_device",
        "if call.since > 1:",
        "if False:",
        devices.test_ranks_change_their_devices_together_or_are_told_so,
        raises=BaseException,
    ),
    fault(
        "a group forgets on which device it was",
        "simgpu._distributed.placement:of_tensors",
        "group.used_devices.setdefault(index)",
        "pass",
        devices.test_a_barrier_is_where_nccl_has_it,
        raises=BaseException,
    ),
    fault(
        "a barrier is on the current device",
        "simgpu._distributed.kernels:barrier",
        "placement.of_barrier(group, device_ids)",
        "placement.of_tensors(group, [])",
        devices.test_a_barrier_is_where_nccl_has_it,
        raises=BaseException,
    ),
    fault(
        "a barrier forgets the device that was used first",
        "simgpu._distributed.placement:of_barrier",
        "for first in group.used_devices:",
        "for first in reversed(group.used_devices):",
        devices.test_a_barrier_is_where_nccl_has_it,
        raises=BaseException,
    ),
    fault(
        "a rank is taken for its number in the group",
        "simgpu._distributed.placement:of_barrier",
        "group.ranks[group.rank] %",
        "group.rank %",
        devices.test_a_barrier_is_where_nccl_has_it,
        raises=BaseException,
    ),
    fault(
        "a group that was made for a device takes others",
        "simgpu._distributed.placement:of_tensors",
        "bound is not None and index != bound",
        "False",
        partial(devices.test_a_group_that_was_made_for_a_device_takes_no_other, name="reduce"),
        raises=BaseException,
    ),
    fault(
        "who waits for the second output of a call waits for ever",
        "simgpu._distributed.works:Work.live_as_outputs",
        "weakref.finalize(output, _gone, self)",
        "weakref.finalize(output, _gone, None)",
        works.test_a_work_of_several_outputs_lives_until_they_are_gone,
    ),
    fault(
        "a call keeps its outputs after it has been waited for",
        "simgpu._distributed.works:Work.live_as_outputs",
        "outputs, self._outputs = self._outputs, []",
        "outputs = self._outputs",
        works.test_a_work_of_several_outputs_lives_until_they_are_gone,
        raises=AssertionError,
    ),
    fault(
        "the sum over ranks that have not joined is asked for its future when it is gone",
        "simgpu._distributed.handles:keeping",
        "_works[self] = work",
        "pass",
        data_parallel.test_ranks_with_fewer_inputs_join,
        raises=BaseException,
    ),
    fault(
        "ranks in threads find each other's ways to move a tensor",
        "simgpu._ranks.meshes:_of_a_rank",
        "if threads.rank is not None:",
        "if False:",
        sharded.test_a_tensor_stays_what_it_is_wherever_it_is_placed,
        raises=BaseException,
    ),
    *(
        fault(
            f"processes add all segments alike: {name}",
            f"simgpu._distributed.gloo:Transport._{name}",
            "segment=here",
            "segment=0",
            transport.test_each_segment_is_added_in_an_order_of_its_own,
        )
        for name in ("all_reduce", "reduce_scatter")
    ),
    fault(
        "numbers without a sign that nobody has waited for are zeros",
        "simgpu._distributed.works:poison",
        "info.min or info.max",
        "info.min",
        works.test_what_nobody_has_waited_for_looks_like_no_result,
    ),
]
