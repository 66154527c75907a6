"""What ranks do in `test_failures.py`: each returns the errors it saw, as (class, text, rank, call) of each step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from collective_bodies import monitored_barrier


def caught(f: Callable[[], Any]) -> tuple[str, str, int | None, str | None, float]:
    """The error of `f`, and how long it took."""
    begun = time.monotonic()
    try:
        f()
    except Exception as e:
        took = time.monotonic() - begun
        return type(e).__name__, str(e), getattr(e, "rank", None), getattr(e, "call", None), took
    return "nothing", "", None, None, time.monotonic() - begun


def ended(f: Callable[[], Any]) -> tuple[str, str, int | None, str | None, float]:
    """The error of `f` on a rank that comes after the others gave up. What they had sent may be all that one call needs, if the news is not
    here yet; it cannot do for two."""
    first = caught(f)
    return caught(f) if first[0] == "nothing" else first


def sizes(rank: int, size: int) -> list:
    t = torch.ones(3 + rank)
    return [caught(lambda: dist.all_reduce(t)), caught(lambda: dist.all_reduce(torch.ones(3)))]


def types(rank: int, size: int) -> list:
    t = torch.ones(4, dtype=torch.float32 if rank else torch.float64)
    return [caught(lambda: dist.all_reduce(t))]


def other_calls(rank: int, size: int) -> list:
    t = torch.ones(4)
    return [caught(lambda: dist.all_reduce(t) if rank else dist.barrier())]


def now(opts: Any) -> None:
    """The call is to end before it returns; torch 2.7 cannot say so here."""
    if hasattr(opts, "asyncOp"):
        opts.asyncOp = False


def misuse(rank: int, size: int) -> list:
    """Each of these is refused before a byte moves, so the group goes on."""
    pg = dist.distributed_c10d._get_default_group()
    meta = torch.empty(3, device="meta")
    f8 = torch.zeros(4, dtype=torch.float8_e4m3fn)
    backend = pg._get_backend(torch.device("cpu"))
    opts = dist.AllreduceOptions()
    now(opts)
    out = [
        caught(lambda: backend.allreduce([meta], opts)),
        caught(lambda: backend.allreduce([torch.ones(1), torch.ones(1)], opts)),
        caught(lambda: backend.allreduce([f8], opts)),
        caught(lambda: dist.all_gather_into_tensor(torch.empty(3), torch.ones(2))),
        caught(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)),
        caught(lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG)),
        caught(
            lambda: dist.all_to_all_single(
                torch.empty(2 * size), torch.empty(2 * size), [9] * size, [2] * size
            )
        ),
        caught(lambda: dist.all_gather([torch.empty(2)], torch.ones(2)))
        if size > 1
        else caught(lambda: 1 / 0),
    ]
    dist.barrier()
    return out


def again(rank: int, size: int) -> list:
    """A second init, and calls after the end."""
    out = [
        caught(lambda: dist.init_process_group("comity", rank=rank, world_size=size, store=dist.HashStore()))
    ]
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    dist.destroy_process_group(group)
    out.append(caught(lambda: backend.barrier().wait()))
    dist.destroy_process_group()
    out.append(caught(lambda: dist.all_reduce(torch.ones(1))))
    return out


def plain_beside_objects(rank: int, size: int) -> list:
    """Rank 1's number is taken for a length by `all_gather_object` on rank 0; then all make the same call."""
    out = []
    for number in (1 << 20, 1 << 60):
        group = dist.new_group()

        def gather(number: int = number, group: Any = group) -> None:
            if rank == 0:
                dist.all_gather_object([None] * size, {"a": 1}, group=group)
            else:
                numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
                dist.all_gather(numbers, torch.tensor([number]), group=group)

        out += [caught(gather), caught(lambda group=group: dist.all_reduce(torch.ones(3), group=group))]
        dist.barrier()
    return out


def aborted(rank: int, size: int) -> list:
    """Rank 0 aborts from another thread while all ranks but the last wait for it."""
    pg = dist.distributed_c10d._get_default_group()
    store = dist.distributed_c10d._get_default_store()
    t = torch.ones(3)
    if rank == size - 1:
        # It comes when nobody waits for it any more.
        store.wait([f"ended{r}" for r in range(size - 1)])
    if rank == 0:
        threading.Timer(0.3, pg._get_backend(torch.device("cpu")).abort).start()
    out = [ended(lambda: dist.all_reduce(t)), caught(lambda: dist.all_reduce(t))]
    store.set(f"ended{rank}", "")
    # A rank that leaves says so, which is another error than this.
    store.wait([f"ended{r}" for r in range(size)])
    return out


def late(rank: int, size: int) -> list:
    """Limits: of a wait, which harms nothing; of a call, which ends the group; of the group. Rank 1 comes when each has passed."""
    t, out = torch.ones(3), []
    store = dist.distributed_c10d._get_default_store()
    pg = dist.distributed_c10d._get_default_group()
    if rank == 0:
        w = dist.all_reduce(t, async_op=True)
        out.append(caught(lambda: w.wait(timedelta(seconds=0.2))))
        store.set("waited", "")
        w.wait()
    else:
        store.wait(["waited"])
        dist.all_reduce(t)
    monitored_barrier()
    if rank == 0:
        out.append(caught(lambda: monitored_barrier(timeout=timedelta(seconds=0.4), wait_all_ranks=True)))
        store.set("watched", "")
        dist.barrier()
        opts = dist.AllreduceOptions()
        opts.timeout = timedelta(seconds=0.5)
        now(opts)
        out.append(caught(lambda: pg.allreduce([t], opts).wait()))
        store.set("called", "")
    else:
        # Too late for the monitor, and it is told so at once.
        store.wait(["watched"])
        out.append(caught(lambda: monitored_barrier(timeout=timedelta(seconds=40))))
        dist.barrier()
        store.wait(["called"])
        out.append(ended(lambda: dist.all_reduce(t)))
    return out


def elsewhere(rank: int, size: int) -> list:
    """The last rank does not make a call until the others have given up."""
    t = torch.ones(3)
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    # Nobody is in the barrier any more.
    store.set(f"in {rank}", "")
    store.wait([f"in {r}" for r in range(size)])
    if rank == size - 1:
        store.wait([f"gave up {r}" for r in range(size - 1)])
        return [ended(lambda: dist.all_reduce(t))]
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    backend.set_timeout(timedelta(seconds=2))
    out = [caught(lambda: dist.all_reduce(t))]
    store.set(f"gave up {rank}", "")
    return out


def receives(rank: int, size: int) -> list:
    """Receives that nobody answers, or with something else."""
    out = []
    if rank == 0:
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        backend.set_timeout(timedelta(seconds=0.5))
        out.append(caught(lambda: dist.recv(torch.empty(2), 1, tag=7)))
        out.append(caught(lambda: dist.recv(torch.empty(2), tag=7)))
        backend.set_timeout(timedelta(seconds=20))
        dist.barrier()
        out.append(caught(lambda: dist.recv(torch.empty(3), 1)))
        out.append(caught(lambda: dist.recv(torch.empty(3, dtype=torch.int32), 1)))
        t = torch.empty(3)
        dist.recv(t, 1)
        assert t.sum() == 3
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(2), 0)
            dist.send(torch.ones(3), 0)
            dist.send(torch.ones(3), 0)
    dist.barrier()
    return out


def killed(rank: int, size: int, store: dist.Store, how: str) -> list:
    """The last rank is killed while the others wait for it."""
    dist.init_process_group("comity", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
    t = torch.ones(1000)
    dist.all_reduce(t)
    if how in ("recv", "batch"):
        dist.barrier()
        if rank == size - 1:
            dist.send(torch.ones(2), 0)
        elif rank == 0:
            dist.recv(torch.empty(2), size - 1)
    if rank == size - 1:
        # Nobody is in a call before that.
        store.wait([f"waits{r}" for r in range(size - 1)])
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    store.set(f"waits{rank}", "")
    calls = {
        "all_reduce": lambda: dist.all_reduce(t),
        "async": lambda: dist.all_reduce(t, async_op=True).wait(),
        "future": lambda: dist.all_reduce(t, async_op=True).get_future().wait(),
        "batch": lambda: batch(size - 1) if rank == 0 else dist.barrier(),
        "recv": lambda: dist.recv(torch.empty(3), size - 1) if rank == 0 else dist.barrier(),
    }
    out = [caught(calls[how]), caught(lambda: dist.all_reduce(t))]
    dist.destroy_process_group()
    return out


def batch(peer: int) -> None:
    """Receives that are parts of one work."""
    ops = [dist.P2POp(dist.irecv, torch.empty(3), peer), dist.P2POp(dist.irecv, torch.empty(3), peer)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()


def backward(rank: int, size: int, store: dist.Store) -> list:
    """A rank is killed in the middle of DDP's backward pass."""
    dist.init_process_group("comity", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
    model(torch.ones(1, 100)).sum().backward()
    if rank == size - 1:
        # The others may still be in the first pass.
        store.wait([f"passed{r}" for r in range(size - 1)])
        os.kill(os.getpid(), signal.SIGKILL)
    store.set(f"passed{rank}", "")
    out = [caught(lambda: model(torch.ones(1, 100)).sum().backward())]
    dist.destroy_process_group()
    return out


def no_time(rank: int, size: int) -> list:
    """A monitored barrier with a limit of 0 s: who is there passes; and what the late one is told."""
    store = dist.distributed_c10d._get_default_store()
    pg = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    if rank == 0:
        out = [caught(lambda: pg.monitored_barrier(timedelta(0)))]
        store.set("looked", "")
    else:
        store.wait(["looked"])
        out = [caught(lambda: pg.monitored_barrier(timedelta(0)))]
    dist.barrier()
    return out


def aborted_while_it_sends(rank: int, size: int, limit: float) -> list:
    """Rank 0 gives the group up when the direction to rank 1 is made, and its thread does not know yet."""
    from comity.torch.mailbox import Mailbox

    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    store = dist.distributed_c10d._get_default_store()
    out, made, pair = [], threading.Event(), Mailbox.pair
    if rank == 0:

        def slow(self: Mailbox, source: int, to: int) -> Any:
            group = pair(self, source, to)
            made.set()
            time.sleep(0.3)
            return group

        Mailbox.pair = slow
        try:
            dist.send(torch.ones(2), 1)
            assert made.wait(limit)
            backend.abort()
            time.sleep(0.5)
        finally:
            Mailbox.pair = pair
    else:
        out = [caught(lambda: dist.recv(torch.ones(2), 0))]
    store.set(f"ended{rank}", "")
    store.wait([f"ended{r}" for r in range(size)])
    return out


def abilities(rank: int, size: int) -> dict:
    """What torch asks a backend whether it can."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    return {n: getattr(backend, n) for n in dir(backend) if n.startswith("supports_")}


def beside_master(rank: int, size: int, store: dist.Store) -> str:
    """Without a key, where MASTER_ADDR is this host's own."""
    dist.init_process_group("comity", store=store, rank=rank, world_size=size)
    t = torch.ones(1)
    dist.all_reduce(t)
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    kinds = backend._group.link_kinds()
    dist.destroy_process_group()
    return str((t.item(), kinds))


def destroyed_under_way(rank: int, size: int, store: dist.Store, how: str) -> tuple[float, list[str]]:
    """Rank 0 destroys its group with a call under way that rank 1, which lives, never matches."""
    import logging

    from comity.torch import lifecycle

    dist.init_process_group("comity", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    dist.barrier()
    words: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: words.append(record.getMessage())
    log, flush = logging.getLogger("comity.torch"), lifecycle._FLUSH
    log.addHandler(handler)
    lifecycle._FLUSH = 0.5
    begun = time.monotonic()
    try:
        if rank == 0:
            works = {
                "few": lambda: dist.isend(torch.ones(3), 1, tag=7),
                "many": lambda: dist.isend(torch.ones(100_000), 1, tag=7),
                "collective": lambda: dist.all_reduce(torch.ones(5), async_op=True),
            }
            work = works[how]()
            dist.destroy_process_group()
            took = time.monotonic() - begun
            store.set("gone", "")
            with contextlib.suppress(Exception):
                work.wait()
            return took, words
        store.wait(["gone"])
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        return time.monotonic() - begun, words
    finally:
        lifecycle._FLUSH = flush
        log.removeHandler(handler)
