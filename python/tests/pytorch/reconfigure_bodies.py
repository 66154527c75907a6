"""What ranks do in `test_reconfigure.py`."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import comity


def total(value: float) -> float:
    t = torch.full((3,), value)
    dist.all_reduce(t)
    return t[0].item()


class Job:
    """A group that waits to be configured, and the store over which its handles go."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.store = store
        self.rank, self.size = rank, size
        limit = timedelta(seconds=20)
        dist.init_process_group(
            "comity", store=store, rank=rank, world_size=size, timeout=limit, enable_reconfigure=True
        )
        self.pg = dist.distributed_c10d._get_default_group()
        self.backend = dist.get_backend_impl(self.pg, torch.device("cpu"))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        dist.destroy_process_group()

    def handles(self, name: str, ranks: Any = None) -> list[str]:
        self.store.set(f"{name}/{self.rank}", dist._get_reconfigure_handle())
        return [self.store.get(f"{name}/{r}").decode() for r in ranks or range(self.size)]


def configured(rank: int, size: int, store: Any) -> None:
    with Job(rank, size, store) as job:
        assert dist._supports_reconfigure() and job.backend.supports_reconfigure
        refused = ""
        try:
            dist.barrier()
        except comity.GroupClosedError as e:
            refused = str(e)
        assert "not configured yet; call reconfigure" in refused, refused
        # The others way round, by a list; then in the order of the handles, by a set.
        handles = job.handles("first")
        assert dist._reconfigure(1, handles[::-1]).wait()
        assert (dist.get_rank(), dist.get_world_size()) == (size - 1 - rank, size)
        assert total(dist.get_rank()) == sum(range(size))
        gathered = [torch.empty(1) for _ in range(size)]
        dist.all_gather(gathered, torch.tensor([float(dist.get_rank())]))
        assert [g.item() for g in gathered] == list(range(size))
        handles = set(job.handles("second"))
        dist._reconfigure(2, handles)
        assert dist.get_rank() == sorted(handles).index(f"comity:{size - 1 - rank}:1:{job.backend._nonce}")
        assert total(1) == size
        half = dist.new_group([0, 1])
        if dist.get_rank() < 2:
            assert dist.get_world_size(half) == 2
            dist.barrier(half)


def refused(rank: int, size: int, store: Any) -> list[str]:
    with Job(rank, size, store) as job:
        own = dist._get_reconfigure_handle()
        said = []
        for given in ([], [own, own], [own, "gloo:1"], ["comity:0:-1:0123"]):
            try:
                dist._reconfigure(1, given)
            except comity.MisuseError as e:
                said.append(str(e))
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        dist._reconfigure(10 + rank, [own])
        try:
            dist._reconfigure(10 + rank, [dist._get_reconfigure_handle()])
        except RuntimeError as e:
            said.append(str(e))
        # Its numbers are as before, and another number serves.
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        handles = job.handles("all")
        if rank == 0:
            # The others do not come.
            try:
                dist._reconfigure(20, handles, timeout=timedelta(seconds=0.3))
            except comity.JoinError as e:
                said.append(str(e))
            assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        job.handles("later")
        dist._reconfigure(21, job.handles("again"))
        assert total(1) == size
        return said


def survives(rank: int, size: int, store: Any) -> tuple[int, float]:
    """The second rank is killed; the others go on, and say who it was."""
    with Job(rank, size, store) as job:
        dist._reconfigure(1, job.handles("start"))
        assert total(1) == size
        # All have their sum before one dies.
        store.set(f"added/{rank}", "")
        if rank == 1:
            store.wait([f"added/{r}" for r in range(size)])
            os.kill(os.getpid(), signal.SIGKILL)
        lost = None
        try:
            while True:
                total(1)
        except comity.PeerLostError as e:
            lost = e.rank
        assert lost == 1
        job.backend.abort()
        assert job.backend.get_error() == ErrorType.SUCCESS
        left = [r for r in range(size) if r != 1]
        dist._reconfigure(2, job.handles("left", left))
        return dist.get_rank(), total(dist.get_rank() + 1)


def shrunk(rank: int, size: int) -> tuple[int, int, float] | None:
    """The last rank has no part in what follows; then the first of those that are left is shrunk out as well."""
    dist.barrier()
    if rank == size - 1:
        return None
    group = dist.shrink_group([size - 1])
    assert group is dist.distributed_c10d._get_default_group()
    return dist.get_rank(), dist.get_world_size(), total(1)
