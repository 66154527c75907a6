"""What ranks with a GPU each do in `on_devices.py` with calls that go out together or later: graphs, batches, blocks."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from collective_bodies import same


def graphs(rank: int, size: int) -> None:
    """Calls in a graph: captured once, then run with other numbers each time, beside calls outside of it."""
    total = float(sum(range(1, size + 1)))
    given, taken, parts = torch.empty(1000), torch.empty(1000), torch.empty(size * 10)
    dist.all_reduce(torch.ones(1))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        taken.copy_(given)
        dist.all_reduce(taken)
        work = dist.all_gather_into_tensor(parts, taken[:10], async_op=True)
        work.wait()
        taken += 1
    for i in range(10):
        given.fill_((rank + 1.0) * i)
        graph.replay()
        same(taken, torch.full((1000,), total * i + 1))
        same(parts, torch.full((size * 10,), total * i))
        x = torch.ones(3)
        dist.all_reduce(x)
        same(x, torch.full((3,), float(size)))
    # Long enough for the watch to look at works meanwhile.
    time.sleep(0.5)
    again = torch.cuda.CUDAGraph()
    with torch.cuda.graph(again):
        time.sleep(0.5)
        dist.all_reduce(taken)
    again.replay()
    torch.cuda.synchronize()


def batches(rank: int, size: int) -> None:
    """Sends and receives in a batch: to all others at once, of all kinds of tensors."""
    dist.all_reduce(torch.ones(1))
    others = [r for r in range(size) if r != rank]
    for dtype in (torch.float32, torch.int16, torch.complex64):
        out = [torch.full((1000,), 10 * rank + r, dtype=dtype) for r in others]
        got = [torch.zeros(2000, dtype=dtype)[::2] for _ in others]
        ops = [dist.P2POp(dist.isend, t, r) for r, t in zip(others, out, strict=True)]
        ops += [dist.P2POp(dist.irecv, t, r) for r, t in zip(others, got, strict=True)]
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
        for r, t in zip(others, got, strict=True):
            same(t.contiguous(), torch.full((1000,), 10 * r + rank, dtype=dtype))


def blocks(rank: int, size: int) -> None:
    """Calls that go out as one."""
    xs = [torch.full((i + 1,), rank + 1.0) for i in range(5)]
    with dist._coalescing_manager(device=torch.device("cuda", rank), async_ops=True) as cm:
        for x in xs:
            dist.broadcast(x, size - 1)
    cm.wait()
    for i, x in enumerate(xs):
        same(x, torch.full((i + 1,), float(size)))
    for x in xs:
        dist.all_reduce(x)
        same(x, torch.full_like(x, float(size * size)))
