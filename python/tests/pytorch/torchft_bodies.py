"""What ranks do in `test_torchft.py`.

torchft itself is no requirement of these tests (`python/suites/torchft_suite.py` runs it). Where it is missing, `ProcessGroupWrapper` below
stands for what `comity.torch.ft` takes from it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import types
import uuid
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import comity

LIMIT = timedelta(seconds=30)


class ProcessGroupWrapper(dist.ProcessGroup):
    """A group that a manager configures, as torchft 0.2.0 has it."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(0, 1)
        self._timeout, self._pg = timeout, None
        self._quorum_id: int | None = None
        self._global_ranks: list[int] | None = None

    def configure(
        self,
        address: str,
        replica: str,
        rank: int,
        size: int,
        quorum: int | None = None,
        group_rank: int | None = None,
        group_size: int | None = None,
        ranks: list[int] | None = None,
    ) -> None:
        self._quorum_id, self._global_ranks = quorum, ranks
        self.abort(errored=False)
        at, _, prefix = address.partition("/")
        host, _, port = at.partition(":")
        store = dist.TCPStore(host, int(port), is_master=False, timeout=self._timeout)
        self._pg = self._create_pg(dist.PrefixStore(prefix, store), rank, size)

    def abort(self, errored: bool = True) -> None:
        if self._pg is not None:
            self._pg.abort()
            self._pg = None

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        with self._run_context():
            return self._wrap_work(self._pg.allreduce(tensors, opts), opts)


if importlib.util.find_spec("torchft") is None:
    sys.modules["torchft"] = types.ModuleType("torchft")
    sys.modules["torchft.process_group"] = types.ModuleType("torchft.process_group")
    sys.modules["torchft.process_group"].ProcessGroupWrapper = ProcessGroupWrapper


class Replica:
    """A replica's group, and the store at which replicas meet."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        from comity.torch.ft import ProcessGroupComity

        server = store.underlying_store
        name = store.compare_set("name", "", uuid.uuid4().hex).decode()
        self.address = f"{server.host}:{server.port}/{name}"
        self.pg = ProcessGroupComity(timeout=LIMIT)
        self.store = store

    def configure(self, quorum: int, rank: int, size: int, *, managed: bool = True) -> None:
        numbers = (quorum, 0, 1, list(range(size))) if managed else ()
        self.pg.configure(f"{self.address}/{quorum}", f"replica_{rank}", rank, size, *numbers)

    def sum(self) -> tuple[Any, torch.Tensor]:
        t = torch.ones(3)
        opts = dist.AllreduceOptions()
        opts.reduceOp = dist.ReduceOp.SUM
        return self.pg.allreduce([t], opts), t


def loses_one(rank: int, size: int, store: Any, managed: bool) -> tuple[str, float]:
    """Rank 1 is killed. What the sums of the others did, and the first sum of those that are left."""
    replica = Replica(rank, size, store)
    replica.configure(1, rank, size, managed=managed)
    work, t = replica.sum()
    assert work.wait() and t[0].item() == size
    assert replica.pg.errored() is None
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    said = ""
    try:
        # A sum that rank 1 took part in may be under way still.
        while replica.pg.errored() is None:
            work, t = replica.sum()
            future = work.get_future().then(lambda f: f.value()[0])
            assert work.wait()
            # As torchft's hook for DDP: what comes back is a tensor, whatever is in it.
            assert future.wait().shape == t.shape
        # Further sums of the step end at once.
        assert replica.sum()[0].wait()
        said = "no sum failed"
    except comity.PeerLostError as e:
        said = f"a sum failed: rank {e.rank}"
    error = replica.pg.errored()
    assert isinstance(error, comity.PeerLostError) and error.rank == 1, error
    replica.configure(2, int(rank == 2), size - 1, managed=managed)
    assert replica.pg.errored() is None
    work, t = replica.sum()
    assert work.wait()
    return said, t[0].item()


def ended_from_outside(rank: int, size: int, store: Any, how: str) -> tuple[str, str, float]:
    """A sum of rank 0 hangs, since rank 1 never calls it. Its group is aborted, or configured anew. How the sum ended, what `errored` has
    then, and the next sum."""
    replica = Replica(rank, size, store)
    replica.configure(1, rank, size)
    said: list[str] = []
    error = ""
    if rank:
        store.wait(["ended"], LIMIT)
    else:
        work, _ = replica.sum()

        def wait() -> None:
            try:
                work.wait()
                said.append("ends the step")
            except comity.Error as e:
                said.append(type(e).__name__)
            store.set("ended", "")

        waiting = threading.Thread(target=wait)
        waiting.start()
        if how == "abort":
            replica.pg.abort()
            waiting.join(LIMIT.total_seconds())
            error = type(replica.pg.errored()).__name__
    replica.configure(2, rank, size)
    if not rank:
        waiting.join(LIMIT.total_seconds())
    work, t = replica.sum()
    assert work.wait() and replica.pg.errored() is None
    return (said or [""])[0], error, t[0].item()
