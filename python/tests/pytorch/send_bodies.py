"""Sends and receives of torch.distributed, as ranks make them in `test_collectives.py`, against values that each rank knows."""

from __future__ import annotations

import torch
import torch.distributed as dist
from collective_bodies import same


def mailbox(rank: int, size: int) -> None:
    """Send and receive, in every order."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for n in (1, 1000, 200_000):
        out, inp = torch.full((n,), float(rank)), torch.empty(n)
        # All receive first, then send, and the other way around.
        reqs = [dist.irecv(inp, left), dist.isend(out, right)]
        for q in reqs:
            q.wait()
        same(inp, torch.full((n,), float(left)))
        inp = torch.empty(n)
        reqs = [dist.isend(out, right), dist.irecv(inp, left)]
        for q in reqs:
            q.wait()
        same(inp, torch.full((n,), float(left)))
        inp = torch.empty(n)
        ops = [dist.P2POp(dist.irecv, inp, left), dist.P2POp(dist.isend, out, right)]
        for q in dist.batch_isend_irecv(ops):
            q.wait()
        same(inp, torch.full((n,), float(left)))
    # Tags: what comes early is kept.
    if rank == 0:
        for tag in (5, 6, 7):
            dist.send(torch.full((100,), float(tag)), 1, tag=tag)
        dist.send(torch.full((100_000,), 8.0), 1, tag=8)
        dist.send(torch.tensor([9]), 1, tag=9)
    elif rank == 1:
        for tag, n in ((9, 1), (7, 100), (5, 100), (6, 100), (8, 100_000)):
            t = torch.zeros(n, dtype=torch.int64 if tag == 9 else torch.float32)
            assert dist.recv(t, 0, tag=tag) == 0
            assert (t == tag).all()
    from_anyone(rank, size)


def from_anyone(rank: int, size: int) -> None:
    if rank == 0:
        seen = {}
        for _ in range(size - 1):
            t = torch.zeros(3)
            source = dist.recv(t)
            seen[source] = t[0].item()
        assert seen == {r: float(r) for r in range(1, size)}, seen
    else:
        dist.send(torch.full((3,), float(rank)), 0)
    # A send ends although its receiver first does something else.
    if rank == 1:
        dist.send(torch.ones(3), 0, tag=1)
    dist.barrier()
    if rank == 0:
        t = torch.zeros(4, 3)
        dist.recv(t[:, 0][:3], 1, tag=1)
        same(t[:, 0].contiguous(), torch.tensor([1.0, 1, 1, 0]))
