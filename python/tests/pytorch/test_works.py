"""Works of several parts, callbacks of receives, and groups that were aborted, forked or misused."""

from __future__ import annotations

import future_bodies as futures
import pytest
import torch
import work_bodies as bodies
from collective_bodies import SPLITS
from torch_ranks import Ranks


@pytest.mark.parametrize("size", [1, 2])
def test_calls_of_several_parts(ranks: Ranks, size: int) -> None:
    ranks.run(size, bodies.parts)


def test_small_calls_that_are_waited_for(ranks: Ranks) -> None:
    s = ranks.run(2, bodies.small)[0]
    assert s[0] == "TimeoutError" and s[2] == 1 and s[3].startswith("all_reduce") and 0.2 < s[4] < 15, s


def test_batches_of_sends_and_receives(ranks: Ranks) -> None:
    for rank, (late, later, refused) in enumerate(ranks.run(2, bodies.batches)):
        for s in (late, later):
            assert s[0] == "TimeoutError" and s[2] == 1 - rank and "recv" in s[3], s
            assert "under way" in s[1] and s[4] >= 0.1, s
        assert refused[0] == "MisuseError" and refused[2] == rank and refused[3] == "send", refused


def test_a_callback_may_receive_from_the_same_rank(ranks: Ranks) -> None:
    ranks.run(2, bodies.receive_in_callback)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_calls_made_in_callbacks_go_out_in_one_order(ranks: Ranks, size: int) -> None:
    ranks.run(size, bodies.calls_in_callbacks)


def test_an_aborted_group_refuses_every_call(ranks: Ranks) -> None:
    steps = ranks.run(2, bodies.after_abort)[0]
    calls = ["send", "recv", "recv", "monitored_barrier", "barrier", "all_reduce"]
    for call, s in zip(calls, steps, strict=True):
        assert s[0] == "AbortedError" and s[2] == 0 and s[3] == call and "rank 0 called abort" in s[1], s


def test_aborted_groups_leave_nothing_behind(ranks: Ranks) -> None:
    ranks.run(2, bodies.abort_and_init, init=None)


def test_a_forked_child_is_told_so(ranks: Ranks) -> None:
    steps = ranks.run(2, bodies.forked)[0]
    for call, s in zip(["recv", "send", "monitored_barrier", "barrier"], steps, strict=True):
        assert s[0] == "ForkedError" and s[2] == 0 and s[3] == call, s


def test_refusals_name_rank_and_call(ranks: Ranks) -> None:
    for rank, steps in enumerate(ranks.run(2, bodies.named)):
        calls = ["send", "recv", "all_gather", "all_gather", "send", "recv", "recv"]
        for i, (call, s) in enumerate(zip(calls, steps, strict=True)):
            assert (
                s[0] == ("MisuseError" if i < 4 else "GroupClosedError") and s[3] == call and call in s[1]
            ), s
            assert f"rank {rank}" in s[1] and (s[2] == rank or i >= 4), s


@pytest.mark.parametrize("size", [2, 3])
def test_callbacks_wait_for_no_other(ranks: Ranks, size: int) -> None:
    ranks.run(size, futures.wait_for_others)


@pytest.mark.parametrize("size", [2, 3])
def test_callbacks_of_a_backward_pass_wait_for_no_other(ranks: Ranks, size: int) -> None:
    ranks.run(size, futures.hooks_that_wait)


def test_callbacks_of_overlapped_zero_take_turns(ranks: Ranks) -> None:
    ranks.run(2, futures.zero_takes_turns)


def test_errors_in_callbacks(ranks: Ranks) -> None:
    ranks.run(2, futures.errors_in_callbacks)


def test_a_future_is_done_when_its_work_was_waited_for(ranks: Ranks) -> None:
    ranks.run(2, futures.done_after_wait)


def test_torch_is_as_it_was(ranks: Ranks) -> None:
    ranks.run(1, futures.torch_is_as_it_was)


@pytest.mark.parametrize("size", [1, 2])
def test_outputs_are_written_in_the_mode_of_the_call(ranks: Ranks, size: int) -> None:
    ranks.run(size, futures.inference)
    ranks.run(size, futures.modes)


@pytest.mark.skipif(not SPLITS, reason="torch splits groups from 2.15 on")
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_are_in_no_part_of_a_group(ranks: Ranks, size: int) -> None:
    ranks.run(size, futures.parts_without_all)


@pytest.mark.skipif(not SPLITS, reason="torch splits groups from 2.15 on")
def test_ranks_that_are_in_no_part_of_a_group_with_a_device(ranks: Ranks) -> None:
    ranks.run(2, futures.parts_of_a_device, init={"backend": "comity", "device_id": torch.device("cpu:0")})


@pytest.mark.skipif(not SPLITS, reason="torch splits groups from 2.15 on")
def test_a_split_of_several_backends_that_leaves_a_rank_out(ranks: Ranks) -> None:
    said = ranks.run(2, futures.parts_of_several_backends, init="cpu:comity,cuda:gloo")
    assert not said[0] and "rank 1" in said[1] and "new_group" in said[1], said
