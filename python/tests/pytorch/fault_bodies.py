"""What ends groups and ranks in `on_devices.py`, on ranks with a GPU each: a body has processes of its own, and says what it heard."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import comity


def until_told(rank: int, call: Callable[[], object], kind: type[comity.Error]) -> comity.Error:
    """The error that ends calls, after which no stream waits."""
    begun = time.monotonic()

    def calls() -> None:
        while time.monotonic() < begun + 30:
            call()
            torch.cuda.synchronize()

    with pytest.raises(kind) as e:
        calls()
    torch.cuda.synchronize()
    print(f"rank {rank}, after {time.monotonic() - begun:.2f} s: {kind.__name__}: {e.value}", flush=True)
    return e.value


def lost(rank: int, size: int) -> None:
    """The last rank dies in the middle of calls: the others' error names it, and no stream waits for ever."""
    t = torch.ones(1 << 20)
    dist.all_reduce(t)
    torch.cuda.synchronize()
    if rank == size - 1:
        os.kill(os.getpid(), 9)
    begun = time.monotonic()
    assert until_told(rank, lambda: dist.all_reduce(t), comity.PeerLostError).rank == size - 1
    assert time.monotonic() - begun < 2


def lost_in_replay(rank: int, size: int) -> None:
    """As `lost`, while the others run a graph, which makes no calls of its own."""
    t = torch.ones(1 << 20)
    dist.all_reduce(t)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(t)
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    if rank == size - 1:
        os.kill(os.getpid(), 9)
    begun = time.monotonic()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    print(f"rank {rank}: the stream came back after {time.monotonic() - begun:.2f} s", flush=True)
    assert until_told(rank, lambda: dist.all_reduce(t), comity.PeerLostError).rank == size - 1
    assert time.monotonic() - begun < 2


def stopped(rank: int, size: int) -> None:
    """The last rank is stopped. The others are told at the limit of 5 s, and it is told when it goes on."""
    store = dist.distributed_c10d._get_default_store()
    t = torch.ones(1 << 20)
    dist.all_reduce(t)
    torch.cuda.synchronize()
    if rank == size - 1:
        store.set("pid", str(os.getpid()))
        store.wait(["told"])
        until_told(rank, lambda: dist.all_reduce(t), comity.Error)
        return
    pid = int(store.get("pid"))
    if rank == 0:
        os.kill(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        assert until_told(rank, lambda: dist.all_reduce(t), comity.PeerLostError).rank == size - 1
        assert time.monotonic() - begun < 8
    finally:
        if store.add("through", 1) == size - 1:
            os.kill(pid, signal.SIGCONT)
            store.set("told", "")


def mismatched(rank: int, size: int) -> None:
    """The last rank gives another tensor: all are told, with both calls."""
    t = torch.ones(256 if rank == size - 1 else 64)
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(t)
    e = until_told(rank, lambda: dist.all_reduce(torch.ones(3)), comity.MismatchError)
    assert "all_reduce #2 f32[64]" in str(e) and "all_reduce #2 f32[256]" in str(e)


def absent(rank: int, size: int) -> None:
    """The last rank does not make a call: all are told at the group's limit."""
    dist.all_reduce(torch.ones(3))
    dist.group.WORLD._get_backend(torch.device("cuda")).set_timeout(timedelta(seconds=3))
    if rank == size - 1:
        time.sleep(6)
    else:
        dist.all_reduce(torch.ones(64))
        torch.cuda.synchronize()
    e = until_told(rank, lambda: dist.all_reduce(torch.ones(64)), comity.TimeoutError)
    assert e.rank == size - 1 and "all_reduce #2 f32[64]" in str(e)


#: What ends groups and ranks: each with processes of its own.
FAULTS = [mismatched, absent, stopped, lost, lost_in_replay]
#: Of these, those in which the last rank is killed.
KILLED = {"lost", "lost_in_replay"}
