"""Groups: their facts, splits, limits and ends."""

import contextlib
import os
import re
from collections.abc import Callable

import numpy as np
import pytest

import comity


def check_facts(g: comity.Group) -> None:
    assert g is comity.init(), "a second init gives the same group"
    assert 0 <= g.rank < g.size
    members = g.members
    assert [m.rank for m in members] == list(range(g.size))
    assert members[g.rank].pid == os.getpid()
    assert g.links[g.rank] is None
    assert all(link == "shm" for r, link in enumerate(g.links) if r != g.rank)
    before = g.stats()["calls"]
    g.barrier()
    assert g.stats()["calls"] == before + 1
    assert g.timeout == 60
    g.timeout = 30.5
    assert g.timeout == 30.5
    g.timeout = 60
    assert f"rank {g.rank} of {g.size}" in repr(g)


def check_functions_use_the_default_group(g: comity.Group) -> None:
    assert comity.all_reduce(1) == g.size
    assert comity.all_gather(g.rank) == list(range(g.size))
    np.testing.assert_array_equal(comity.broadcast(np.full(3, g.rank), g.size - 1), np.full(3, g.size - 1))
    assert comity.barrier() is None
    with pytest.raises(comity.MisuseError, match="a group of Comity is needed"):
        comity.all_reduce(1, group=3)


def check_splits(g: comity.Group) -> None:
    n, r = g.size, g.rank
    half = g.split(r % 2)
    assert half is not None
    assert (half.rank, half.size) == (r // 2, len(range(r % 2, n, 2)))
    assert half.all_gather(r) == list(range(r % 2, n, 2))
    backwards = g.split(0, -r)
    assert backwards is not None
    assert backwards.rank == n - 1 - r
    assert backwards.all_gather(r) == list(range(n))[::-1]
    some = g.split(0 if r == 0 else None)
    assert (some is None) == (r != 0)
    inner = half.split(0)
    assert inner is not None
    assert inner.all_sum(1) == half.size
    with pytest.raises(comity.MisuseError, match="negative"):
        g.split(-1)
    for _ in range(3):
        g.split(0).close()
    assert g.all_sum(1) == n


def check_close(g: comity.Group) -> None:
    other = g.split(0)
    assert other is not None
    with other as entered:
        assert entered.all_sum(1) == g.size
    g.barrier()
    assert other.closed
    with pytest.raises(comity.GroupClosedError):
        other.all_sum(1)
    g.barrier()


def _split(g: comity.Group) -> comity.Group:
    """A group of the same ranks that is to fail: not before all have left the split, which would fail as well."""
    other = g.split(0)
    assert other is not None
    g.barrier()
    return other


def check_abort(g: comity.Group) -> None:
    other = _split(g)
    if g.rank == 0:
        pending = other.all_sum(np.ones(3), async_=True) if g.size > 1 else None
        other.abort("enough of it")
        if pending is not None:
            with pytest.raises(comity.AbortedError, match="enough of it"):
                pending.wait()
    g.barrier()
    if g.rank != 0:
        # What rank 0 began may come before its word that it gave up.
        with contextlib.suppress(comity.AbortedError):
            other.all_sum(np.ones(3))
    with pytest.raises(comity.AbortedError, match="enough of it") as e:
        other.barrier()
    assert e.value.rank == 0
    assert g.all_sum(1) == g.size, "the group it was split from goes on"


def check_limits_name_the_call(g: comity.Group) -> None:
    other = _split(g)
    if g.size == 1:
        assert other.all_sum(1, timeout=0.001) == 1
        return
    if g.rank == 0:
        with pytest.raises(comity.TimeoutError, match=r"all_reduce #\d+ f64\[7\] sum") as e:
            other.all_sum(np.ones(7), timeout=0.2)
        assert isinstance(e.value, TimeoutError)
        assert e.value.rank in range(1, g.size)
        assert "all_reduce" in str(e.value.call)
        with pytest.raises(comity.TimeoutError, match="the group failed earlier"):
            other.barrier()
    g.barrier()


def check_mismatches_are_told_to_both(g: comity.Group) -> None:
    if g.size == 1:
        return
    for differs, call in {
        "dtype": lambda o: o.all_sum(np.ones(4, np.float32 if g.rank == 0 else np.int32)),
        "count": lambda o: o.all_sum(np.ones(4 + (g.rank == 0))),
        "operation": lambda o: o.all_sum(np.ones(4)) if g.rank == 0 else o.all_gather(np.ones(4)),
        "reduction": lambda o: o.all_max(np.ones(4)) if g.rank == 0 else o.all_sum(np.ones(4)),
    }.items():
        other = _split(g)
        # A rank that did not see the difference itself is told of it.
        with pytest.raises((comity.MismatchError, comity.PeerLostError)) as e:
            call(other)
        assert e.value.call is not None, differs
        g.barrier()
    assert g.all_sum(1) == g.size


def _barriers(g: comity.Group) -> None:
    """Two: the other rank's share of the first may have come before its word that it gave up."""
    g.barrier()
    g.barrier()


def check_who_does_not_make_a_call_is_named(g: comity.Group) -> None:
    if g.size == 1:
        return
    last = g.size - 1
    calls = [
        lambda other: other.all_sum(np.ones(4)),
        lambda other: other.all_gather(np.ones(4)),
        lambda other: other.barrier(),
    ]
    for call in calls:
        # One of those that wait may be late itself by a short limit.
        assert any(_is_named(g, last, call, limit) for limit in (0.3, 3, 30))


def _is_named(g: comity.Group, last: int, call: Callable[[comity.Group], object], limit: float) -> bool:
    """Whether all the others name the last rank, which makes the call when they have given up."""
    other = _split(g)
    other.timeout = limit
    if g.rank == last:
        g.barrier()
        # It is told what it missed, not that it is at fault itself. Where the other's data were there before its word that it gave up,
        # the two calls are told.
        with pytest.raises((comity.AbortedError, comity.MismatchError)) as told:
            _barriers(other)
        if isinstance(told.value, comity.AbortedError):
            assert "timed out after " in str(told.value) and ": not called by this rank" in str(told.value)
            assert told.value.rank != last
        else:
            assert "while rank" in str(told.value)
        return g.all_max(0) == 0
    with pytest.raises((comity.TimeoutError, comity.AbortedError)) as e:
        call(other)
    g.barrier()
    words = rf"timed out after .*rank {last} .*had not called it"
    is_named = (
        isinstance(e.value, comity.TimeoutError) and e.value.rank == last and re.search(words, str(e.value))
    )
    return g.all_max(int(not is_named)) == 0


def check_a_wrong_last_call_is_told_by_closing(g: comity.Group) -> None:
    if g.size == 1:
        return
    other = g.split(0)
    assert other is not None

    other.broadcast(np.ones(8), g.rank)
    # Nobody leaves before all have made their calls.
    g.barrier()
    with pytest.raises(comity.MismatchError, match="broadcast"):
        other.close()
    right = g.split(0)
    assert right is not None
    right.broadcast(np.ones(8), 0)
    right.close()
