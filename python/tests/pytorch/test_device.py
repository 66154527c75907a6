"""Calls on CUDA tensors without a device: what carries them is stood in for (`device_bodies.py`); all else is as it is."""

from __future__ import annotations

import device_bodies as bodies
import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d
from torch_ranks import Ranks


@pytest.mark.parametrize("size", [1, 2, 4])
def test_results(ranks: Ranks, size: int) -> None:
    ranks.run(size, bodies.results)


def test_lists_are_filled_behind_a_block(ranks: Ranks) -> None:
    ranks.run(2, bodies.gathered_in_blocks)


def test_calls_in_few_steps(ranks: Ranks) -> None:
    assert ranks.run(1, bodies.quick) == [[True, True, False, False, False, False, True, False]]


def test_wrong_tensors_are_refused(ranks: Ranks) -> None:
    for rank, (place, kinds) in enumerate(ranks.run(2, bodies.refused)):
        assert place[0] == kinds[0] == "MisuseError" and place[2] == kinds[2] == rank
        assert "dense" in place[1] and "one type" in kinds[1]


@pytest.mark.parametrize(("size", "how"), [(2, "count"), (4, "count"), (2, "dtype"), (3, "operation")])
def test_a_difference_is_told_on_all_ranks(ranks: Ranks, size: int, how: str) -> None:
    last = {
        "count": "all_reduce #12 f32[256]",
        "dtype": "all_reduce #12 f64[64]",
        "operation": "broadcast #12",
    }
    for rank, (kind, text, about, call, took, let_go) in enumerate(ranks.run(size, bodies.different, how)):
        assert kind == "MismatchError" and f"disagree in {how}" in text, text
        assert "called all_reduce #12 f32[64] sum" in text and f"rank {size - 1} called {last[how]}" in text
        assert about == (0 if rank == size - 1 else size - 1) and call == "all_reduce", (about, call)
        # The limit of these calls is 30 s.
        assert took < 15 and let_go


def test_a_barrier_compares(ranks: Ranks) -> None:
    for rank, (equal, other) in enumerate(ranks.run(3, bodies.barriers)):
        assert equal[0] == "nothing" and equal[4] < 15, equal
        assert other[0] == "MismatchError" and "all_reduce #5 f32[9]" in other[1], (rank, other)


def test_leaving_compares(ranks: Ranks) -> None:
    assert all(out[0][0] == "nothing" for out in ranks.run(3, bodies.one_more, False))
    for rank, (out,) in enumerate(ranks.run(2, bodies.one_more, True)):
        assert out[0] == "MismatchError" and out[2] == 1 - rank, out
        assert "rank 0 called all_reduce #4 f32[8] sum" in out[1] and "rank 1 left without it" in out[1]


@pytest.mark.parametrize("size", [2, 4])
def test_a_killed_rank_is_named_long_before_a_silent_one(ranks: Ranks, size: int) -> None:
    env = {"COMITY_DETECTION": "60"}
    for kind, text, about, _, took, let_go in ranks.run(size, bodies.killed, may_die=(size - 1,), env=env)[
        :-1
    ]:
        assert kind == "PeerLostError" and about == size - 1 and f"rank {size - 1}" in text, text
        assert "during all_reduce #1 f32[8] sum on CUDA tensors" in text, text
        assert took < 15 and let_go


def test_a_stopped_rank_is_named_at_the_limit(ranks: Ranks) -> None:
    for kind, text, about, _, took, let_go in ranks.run(3, bodies.stopped, env={"COMITY_DETECTION": "3"})[
        :-1
    ]:
        assert kind == "PeerLostError" and about == 2, text
        assert took < 20 and let_go


def test_a_rank_that_does_not_make_a_call(ranks: Ranks) -> None:
    for kind, text, about, _, took, let_go in ranks.run(3, bodies.late):
        assert kind == "TimeoutError" and about == 2, text
        assert "all_reduce #2 f32[32] sum" in text and "0.5 s" in text and " timeout " in text, text
        assert "rank 2 made 1 such calls" in text and took < 15 and let_go


def test_a_rank_that_leaves_later(ranks: Ranks) -> None:
    said, let_go, leaves, calls, gone = ranks.run(3, bodies.slow_to_leave)[0]
    assert said[0] == "PeerLostError" and "left the group" in said[1] and "all_reduce #1 f32[8]" in said[1], (
        said
    )
    assert not let_go and leaves[0] == "nothing" and calls == ["shutdown"] and gone, (let_go, leaves, calls)


def test_a_block_of_calls(ranks: Ranks) -> None:
    calls = [
        "_start_coalescing",
        "allreduce",
        "allreduce",
        "_allgather_base",
        "send",
        "recv",
        "_end_coalescing",
    ]
    assert ranks.run(2, bodies.block) == [calls, calls]


def test_a_graph_holds_a_communicator(ranks: Ranks) -> None:
    assert ranks.run(2, bodies.held) == [["MismatchError", True, False, True, []]] * 2


def test_a_group_is_left_when_torch_has_said_its_last_words(ranks: Ranks) -> None:
    assert ranks.run(2, bodies.last_words) == [["TimeoutError", True, ["all"]]] * 2


def test_abort_reaches_all(ranks: Ranks) -> None:
    for kind, text, about, _, _, let_go in ranks.run(3, bodies.aborted):
        assert kind == "AbortedError" and about == 0 and "rank 0" in text and let_go, text


def test_calls_in_words() -> None:
    from comity.torch.ledger import Ledger, difference, encoded, words

    opts = dist.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    root = _c10d.ReduceOptions()
    root.rootRank = 3
    calls = [
        ("all_reduce", torch.float32, 64, opts), ("all_reduce", torch.float32, 65, opts), ("reduce", torch.bfloat16, 64, root),
        ("all_to_all", torch.int64, 0, None), ("all_gather", torch.float8_e5m2, 7, _c10d.AllgatherOptions()),
    ]  # fmt: skip
    said = [words(encoded(c), i + 1) for i, c in enumerate(calls)]
    assert said == [
        "all_reduce #1 f32[64] avg", "all_reduce #2 f32[65] avg", "reduce #3 bf16[64] sum root 3", "all_to_all #4 i64[0]",
        "all_gather #5 float8_e5m2[7]",
    ]  # fmt: skip
    assert difference(encoded(calls[0]), encoded(calls[1])) == "count"
    assert difference(encoded(calls[0]), encoded(calls[2])) == "operation"
    one, two = Ledger(), Ledger()
    for c in calls:
        one.note(c)
        two.note(c)
    assert one.absorb() == two.absorb() == 5 and one.digest(5) == two.digest(5) != one.digest(4)
    one.agree(3)
    assert (
        words(one.call(3), 4) == "all_to_all #4 i64[0]"
        and one.absorb() == 5
        and one.call(1) == bytes(16) == one.call(5)
    )
    one.note(calls[0])
    assert one.absorb() == 6 and one.last() == "all_reduce #6 f32[64] avg"


def test_who_is_late() -> None:
    from comity.torch.watch import Row, behind, differs, first_difference

    assert behind([Row(3, 0, 0, 0), Row(3, 0, 0, 0)]) == []
    assert behind([Row(8, 0, 1, 0), Row(5, 0, 0, 0), Row(3, 0, 1, 0)]) == [1, 2]
    assert differs([Row(1, 7, 0, 0), Row(2, 8, 0, 0)]) and not differs([Row(1, 7, 0, 0), Row(2, 7, 0, 1)])
    a, b = bytes(16), bytes([1] * 16)
    assert first_difference([a + a, a + a, a + b]) == (1, 2)
