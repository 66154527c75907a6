"""What ranks do in `test_works.py`: works of several parts, callbacks of receives, groups that were aborted or forked."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from collective_bodies import monitored_barrier, same
from failure_bodies import caught, now

from comity.torch import callbacks, metrics


def cpu_backend() -> Any:
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))


def until(true: Callable[[], Any]) -> None:
    """The limit of the test is the limit here."""
    while not true():
        time.sleep(0.001)


def parts(rank: int, size: int) -> None:
    """Calls of two parts and more: polled, with futures, thrown away."""
    total = float(sum(range(1, size + 1)))

    def tensors() -> list[torch.Tensor]:
        # The large one has a call of its own, and is written back by a copy.
        return [torch.full((5,), rank + 1.0), torch.full((300_000, 2), rank + 1.0)[:, 0]]

    def together(ts: list[torch.Tensor]) -> Any:
        with dist._coalescing_manager(async_ops=True) as block:
            for t in ts:
                dist.all_reduce(t)
        (w,) = block.works
        return w

    ts = tensors()
    w = together(ts)
    until(w.is_completed)
    assert w.is_success() and w.exception() is None
    for t in ts:
        same(t, torch.full_like(t, total))
    ts = tensors()
    f = dist.all_reduce_coalesced(ts, async_op=True).then(lambda f: [t.sum() for t in f.value()])
    assert [s.item() for s in f.wait()] == [5 * total, 300_000 * total]
    ts = tensors()
    assert together(ts).wait() is True
    for t in ts:
        same(t, torch.full_like(t, total))
    # One list for each rank, with as many tensors as each rank gives: as many as there are ranks, and one more.
    for n in (size, size + 1):
        outs = [[torch.zeros(2, 2)[:, 0] for _ in range(n)] for _ in range(size)]
        ins = [torch.full((2,), 10.0 * i + rank) for i in range(n)]
        dist.all_gather_coalesced(outs, ins, async_op=True).wait()
        for r, out in enumerate(outs):
            for i, o in enumerate(out):
                same(o.contiguous(), torch.full((2,), 10.0 * i + r))
    # Nobody waits for this one.
    together(tensors())
    dist.barrier()
    until(lambda: callbacks.running() == 0)


def small(rank: int, size: int) -> list:
    """Calls on simple tensors that are waited for, and on tensors that only seem simple."""
    total = float(sum(range(1, size + 1)))
    op = dist.ReduceOp
    for kind, expected in {op.SUM: total, op.MAX: size, op.MIN: 1, op.AVG: total / size}.items():
        for t in (torch.tensor([rank + 1.0]), torch.nn.Parameter(torch.tensor([rank + 1.0]))):
            dist.all_reduce(t, kind)
            assert t.item() == expected, (kind, t)
    scaled = torch.tensor([rank + 1.0])
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(2.0))
    assert scaled.item() == 2 * total
    opts = dist.AllreduceOptions()
    now(opts)
    # It shows what its memory does not hold. Torch's dispatcher would pass on a copy.
    hidden = torch.tensor([1j * (rank + 1)]).conj()
    cpu_backend().allreduce([hidden.imag], opts)
    assert hidden.imag.is_neg() and hidden.imag.item() == -total
    top = torch.tensor([-1j * (rank + 1)]).conj().imag
    opts.reduceOp = op.MAX
    cpu_backend().allreduce([top], opts)
    assert top.is_neg() and top.item() == size
    column = torch.full((2, 2), rank + 1.0)[:, 0]
    dist.all_reduce(column)
    same(column, torch.full((2,), total))
    # Torch's own limit of one call.
    opts.timeout = timedelta(seconds=60)
    w = dist.distributed_c10d._get_default_group().allreduce([torch.ones(2)], opts)
    assert w is None or w.wait()
    opts.timeout = timedelta(seconds=0.3)
    store = dist.distributed_c10d._get_default_store()
    if rank:
        store.wait(["late"])
        return []
    said = caught(lambda: cpu_backend().allreduce([torch.ones(2)], opts))
    store.set("late", "")
    return said


def batches(rank: int, size: int) -> list:
    """Sends and receives that are one work: polled, with futures, with a limit, with one that cannot be made."""
    right, left = (rank + 1) % size, (rank - 1) % size

    def batch(inp: torch.Tensor) -> Any:
        out = torch.full((7,), float(rank))
        ops = [dist.P2POp(dist.irecv, inp, left), dist.P2POp(dist.isend, out, right)]
        (w,) = dist.batch_isend_irecv(ops)
        return w

    inp = torch.zeros(7, 2)[:, 0]
    w = batch(inp)
    until(w.is_completed)
    same(inp.contiguous(), torch.full((7,), float(left)))
    inp = torch.zeros(7, 2)[:, 0]
    batch(inp).get_future().wait()
    same(inp.contiguous(), torch.full((7,), float(left)))
    # One receive alone is a work of one part.
    t = torch.zeros(3)
    (w,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, t, left)])
    late = caught(lambda: w.wait(timedelta(seconds=0.1)))
    dist.barrier()
    dist.send(torch.ones(3), right)
    w.wait()
    same(t, torch.ones(3))
    ts = [torch.zeros(3), torch.zeros(3)]
    (w,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, t, left) for t in ts])
    later = caught(lambda: w.wait(timedelta(seconds=0.1)))
    assert not w.is_completed()
    dist.barrier()
    for _ in ts:
        dist.send(torch.ones(3), right)
    w.wait()
    for t in ts:
        same(t, torch.ones(3))
    # What is refused is refused at the end, and the block has ended then.
    group = dist.group.WORLD
    with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True) as block:
        group.send([torch.ones(3)], size, 0)
    refused = caught(block.wait)
    t = torch.ones(2)
    dist.all_reduce(t)
    same(t, torch.full((2,), float(size)))
    return [late, later, refused]


def receive_in_callback(rank: int, size: int) -> None:
    """A callback of a receive receives from the same rank, and sends back."""
    if rank == 0:
        for n in (3, 50_000):
            first, second = torch.zeros(n), torch.zeros(n)

            def more(_: Any, second: torch.Tensor = second) -> float:
                dist.recv(second, 1, tag=2)
                dist.send(second + 1, 1, tag=3)
                return second.sum().item()

            # Posted before it comes, so that the thread that reads ends it.
            future = dist.irecv(first, 1, tag=1).get_future().then(more)
            dist.barrier()
            assert future.wait() == 2.0 * n
    else:
        for n in (3, 50_000):
            dist.barrier()
            if rank > 1:
                continue
            dist.send(torch.full((n,), 1.0), 0, tag=1)
            dist.send(torch.full((n,), 2.0), 0, tag=2)
            t = torch.zeros(n)
            dist.recv(t, 0, tag=3)
            same(t, torch.full((n,), 3.0))


def calls_in_callbacks(rank: int, size: int) -> None:
    """Callbacks that make calls, beside calls of the caller: on each rank other ones are ready first."""
    total, order = float(sum(range(1, size + 1))), []

    def mine(n: int) -> torch.Tensor:
        return torch.full((n,), rank + 1.0)

    def again(i: int) -> Callable[[Any], float]:
        def callback(f: Any) -> float:
            f.value()
            time.sleep(0.01 * ((i + rank) % 2))
            # One that is waited for here, one for whose callback nobody waits, and one that ends before it returns.
            x = dist.all_reduce(mine(100 + i), async_op=True).get_future().wait()[0]
            w = dist.all_reduce(mine(200 + i), async_op=True)
            w.get_future().then(lambda f: f.value() and dist.broadcast(mine(300 + i), 0))
            y = mine(400 + i)
            dist.all_reduce(y)
            order.append(i)
            return (x.sum() + y.sum()).item()

        return callback

    futures = []
    for i in range(6):
        w = dist.all_reduce(mine(i + 1), async_op=True)
        if i % 3 == 2:
            w.wait()
        elif rank == i % 2:
            # On this rank the sum is there, and the callback is run where it is given.
            until(w.is_completed)
        futures.append(w.get_future().then(again(i)))
        dist.all_reduce(mine(10 + i))
    # Torch's own future of several has no turn, so its callbacks may make no calls.
    both = torch.futures.collect_all(futures[:2]).then(lambda f: len(f.value()))
    dist.all_reduce(mine(20))
    for i, f in enumerate(futures):
        assert f.wait() == total * (500 + 2 * i)
    assert both.wait() == 2
    assert order == sorted(order) and len(order) == 6
    dist.barrier()
    until(lambda: callbacks.running() == 0)


def after_abort(rank: int, size: int) -> list:
    """Every way to call a group that this rank has aborted."""
    backend, t = cpu_backend(), torch.ones(2)
    if rank == 0:
        dist.send(t, 1)
    store = dist.distributed_c10d._get_default_store()
    if rank:
        dist.recv(t, 0)
        store.set("received", "now")
        store.wait(["aborted"])
        return []
    # A send of few bytes ends before they are on their way.
    store.wait(["received"])
    watched = len(metrics._groups)
    backend.abort()
    out = [
        caught(lambda: dist.send(t, 1)),
        caught(lambda: dist.recv(t, 1)),
        caught(lambda: dist.recv(t)),
        caught(lambda: monitored_barrier(timeout=timedelta(seconds=1))),
        caught(dist.barrier),
        caught(lambda: dist.all_reduce(t)),
    ]
    assert len(metrics._groups) < watched
    assert backend.get_error() == torch._C._distributed_c10d.ErrorType.COMM_ERROR
    store.set("aborted", "now")
    return out


def abort_and_init(rank: int, size: int, store: dist.Store) -> None:
    """Groups that are aborted leave nothing behind."""

    def threads() -> int:
        gc.collect()
        names = []
        for t in Path("/proc/self/task").iterdir():
            # A thread of a test before this one may end meanwhile.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                names.append((t / "comm").read_text().strip())
        return sum(n.startswith("comity") and n != "comity-call" for n in names)

    before, watched = threads(), len(metrics._groups)
    for i in range(3):
        name = f"again{i}"
        dist.init_process_group("comity", store=dist.PrefixStore(name, store), rank=rank, world_size=size)
        dist.all_reduce(torch.ones(1))
        # Both have their sum before either gives up.
        store.set(f"{name}/{rank}", "done")
        store.wait([f"{name}/{r}" for r in range(size)])
        # Torch lets go of the group after this, and does not shut it down.
        dist.distributed_c10d._abort_process_group()
    assert len(metrics._groups) == watched
    until(lambda: threads() <= before)


def forked(rank: int, size: int) -> list:
    """What a forked child is told by every way to call the group."""
    t = torch.ones(2)
    # Both directions are in use before the fork.
    if rank == 0:
        dist.send(t, 1)
        dist.recv(t, 1)
    elif rank == 1:
        dist.recv(t, 0)
        dist.send(t, 0)
    out = []
    if rank == 0:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                said = [
                    caught(lambda: dist.recv(torch.ones(2), 1)),
                    caught(lambda: dist.send(torch.ones(2), 1)),
                    caught(monitored_barrier),
                    caught(lambda: cpu_backend().barrier().wait()),
                ]
                cpu_backend().shutdown()
                os.write(theirs, repr(said).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            out = eval(pipe.read().decode())
        os.waitpid(child, 0)
    # The parent's group is unharmed.
    dist.all_reduce(t)
    same(t, torch.full((2,), float(size)))
    return out


def named(rank: int, size: int) -> list:
    """Calls that are refused, which name rank and call."""
    backend = cpu_backend()
    t = torch.ones(2)
    dense = torch.eye(2).to_sparse_csr()
    out = [
        caught(lambda: backend.send([t], size, 0)),
        caught(lambda: backend.recv([t], rank, 0)),
        caught(lambda: backend.allgather([[dense] * size], [dense]).wait()),
        caught(lambda: backend.allgather([[t.int()] * size], [t]).wait()),
    ]
    backend.shutdown()
    out += [
        caught(lambda: backend.send([t], 0, 0)),
        caught(lambda: backend.recv([t], 0, 0)),
        caught(lambda: backend.recv_anysource([t], 0)),
    ]
    return out
