"""Bad input and failures: an exception of the right class that names rank and call; never a crash, a hang or a wrong number."""

from __future__ import annotations

import failure_bodies as bodies
import pytest
import torch
from torch_ranks import Ranks

NEW = tuple(int(x) for x in torch.__version__.split(".")[:2]) >= (2, 14)


def classes(out: list, step: int) -> list[str]:
    return [o[step][0] for o in out]


def test_ranks_with_other_sizes_are_told(ranks: Ranks) -> None:
    out = ranks.run(2, bodies.sizes)
    assert classes(out, 0) == ["MismatchError", "MismatchError"] or sorted(classes(out, 0)) == [
        "AbortedError",
        "MismatchError",
    ], out
    for rank, steps in enumerate(out):
        assert "f32[3]" in steps[0][1] and "f32[4]" in steps[0][1] and "all_reduce" in steps[0][3], steps
        assert steps[0][2] == 1 - rank or steps[0][0] == "AbortedError"
        # The group stays failed, and says why.
        assert steps[1][0] in ("MismatchError", "AbortedError", "PeerLostError"), steps


def test_ranks_with_other_types_are_told(ranks: Ranks) -> None:
    out = ranks.run(2, bodies.types)
    assert "MismatchError" in classes(out, 0), out
    assert all("f32" in o[0][1] and "f64" in o[0][1] for o in out), out


def test_ranks_with_other_calls_are_told(ranks: Ranks) -> None:
    out = ranks.run(2, bodies.other_calls)
    assert "MismatchError" in classes(out, 0), out
    assert all("barrier" in o[0][1] and "all_reduce" in o[0][1] for o in out), out


@pytest.mark.parametrize("size", [1, 2])
def test_misuse_is_refused_and_the_group_goes_on(ranks: Ranks, size: int) -> None:
    for rank, steps in enumerate(ranks.run(size, bodies.misuse)):
        assert [s[0] for s in steps[:7]] == ["MisuseError"] * 7, steps
        for s in steps[:7]:
            assert f"rank {rank}" in s[1] and s[2] == rank and s[3], s
        assert steps[7][0] != "nothing"


def test_double_init_and_calls_after_the_end(ranks: Ranks) -> None:
    for steps in ranks.run(2, bodies.again):
        assert steps[0][0] == "ValueError" and "twice" in steps[0][1], steps
        assert steps[1][0] == "GroupClosedError" and "barrier" in steps[1][1], steps
        assert steps[2][0] == "ValueError", steps


def test_plain_calls_beside_calls_of_objects(ranks: Ranks) -> None:
    """torch makes calls of objects out of plain ones: the difference shows in the next call."""
    zero, one = ranks.run(2, bodies.plain_beside_objects)
    told = (zero[0], one[1])
    assert one[0][0] == "nothing" and "MismatchError" in [s[0] for s in told], (zero, one)
    assert all("all_gather" in s[1] and "all_reduce" in s[1] for s in told), (zero, one)
    # A length that no memory has is torch's own error, and the group is unharmed.
    assert zero[2][0] == "RuntimeError" and "memory" in zero[2][1], zero
    assert [s[0] for s in (one[2], zero[3], one[3])] == ["nothing"] * 3, (zero, one)


def test_abort_wakes_all_and_stays(ranks: Ranks) -> None:
    out = ranks.run(3, bodies.aborted)
    for rank, steps in enumerate(out):
        assert [s[0] for s in steps] == ["AbortedError"] * 2, (rank, steps)
        assert all("rank 0" in s[1] and s[2] == 0 for s in steps), steps


def test_limits(ranks: Ranks) -> None:
    out = ranks.run(2, bodies.late)
    wait, barrier, call = out[0]
    assert wait[0] == "TimeoutError" and wait[4] >= 0.2, wait
    assert barrier[0] == "TimeoutError" and barrier[2] == 1 and barrier[4] >= 0.4, barrier
    assert call[0] == "TimeoutError" and "rank 1" in call[1] and "all_reduce" in call[3] and call[4] >= 0.5, (
        call
    )
    told, ended = out[1]
    # The late rank is not told that it is about itself.
    assert told[0] == "TimeoutError" and told[2] == 0 and told[3] == "monitored_barrier", told
    # Rank 0 was there first. The limit of this one is 40 s.
    assert "rank 1 did not come" in told[1] and told[4] < 20.0, told
    assert ended[0] == "AbortedError" and ended[2] == 0 and "not called by this rank" in ended[1], ended


def test_who_does_not_make_a_call_is_named(ranks: Ranks) -> None:
    out = ranks.run(3, bodies.elsewhere)
    for (call,) in out[:2]:
        assert call[0] == "TimeoutError" and call[2] == 2 and "timed out" in call[1], out
    assert out[2][0][0] == "AbortedError" and out[2][0][2] in (0, 1), out


def test_receives_that_do_not_fit(ranks: Ranks) -> None:
    late, later, length, kind = ranks.run(3, bodies.receives)[0]
    for s in (late, later):
        # The group's own limit is 20 s.
        assert s[0] == "TimeoutError" and "recv" in s[1] and 0.5 <= s[4] < 18.0, s
    for s in (length, kind):
        assert s[0] == "MismatchError" and s[2] == 1 and "recv" in s[3], s


@pytest.mark.parametrize("how", ["all_reduce", "async", "future", "recv", "batch"])
def test_a_killed_rank_is_named(ranks: Ranks, how: str) -> None:
    out = ranks.run(3, bodies.killed, how, init=None, may_die=(2,))
    for rank in range(2):
        first, second = out[rank]
        assert first[0] == "PeerLostError", out
        assert "rank 2" in first[1] and first[4] < 15.0, first
        assert second[0] == "PeerLostError" and "rank 2" in second[1] and second[4] < 15.0, second


def test_a_rank_killed_in_backward_is_named(ranks: Ranks) -> None:
    out = ranks.run(2, bodies.backward, init=None, may_die=(1,))
    (error,) = out[0]
    assert (
        error[0] in ("RuntimeError", "PeerLostError") and "rank 1" in error[1] and "all_reduce" in error[1]
    ), error


def test_a_limit_of_no_time_is_one(ranks: Ranks) -> None:
    (first,), (late,) = ranks.run(2, bodies.no_time)
    assert first[0] == "TimeoutError" and first[2] == 1 and first[4] < 15.0, first
    assert late[0] == "TimeoutError" and late[2] == 0 and late[4] < 15.0 and "rank 0" in late[1], late


def test_an_abort_beside_a_send_is_heard(ranks: Ranks) -> None:
    (heard,) = ranks.run(2, bodies.aborted_while_it_sends, 15.0)[1]
    assert heard[0] == "AbortedError" and heard[2] == 0 and heard[4] < 15.0, heard


def test_what_torch_asks_has_an_answer(ranks: Ranks) -> None:
    (answers,) = ranks.run(1, bodies.abilities)
    assert all(isinstance(a, bool) for a in answers.values()), answers
    if NEW:
        assert not answers["supports_window"] and not answers["supports_time_estimate"], answers
        assert answers["supports_shrinking"], answers
        assert answers["supports_reconfigure"] == hasattr(torch._C._distributed_c10d, "ReconfigureOptions")


def test_without_a_key_ranks_listen_beside_the_master(ranks: Ranks) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "COMITY_INSECURE": "1", "COMITY_LINKS": "tcp"}
    assert ranks.run(2, bodies.beside_master, init=None, env=env) == [
        "(2.0, [None, 'tcp'])",
        "(2.0, ['tcp', None])",
    ]


@pytest.mark.parametrize("how", ["few", "many", "collective"])
def test_a_group_is_destroyed_with_a_call_that_nobody_matches(ranks: Ranks, how: str) -> None:
    (took, words), _ = ranks.run(2, bodies.destroyed_under_way, how, init=None)
    call = "all_reduce" if how == "collective" else "send float32"
    assert took < 20 and len(words) == 1 and call in words[0] and "rank 0 left" in words[0], (took, words)
