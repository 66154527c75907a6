"""What ranks do in `test_collectives.py` with tensors that do not lie in one piece: inputs and outputs of every operation."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

#: Ways to lay out a tensor of 4 by 3 in more memory than it needs, or in another order.
LAYOUTS: list[Callable[[], torch.Tensor]] = [
    lambda: torch.zeros(3, 4).t(),
    lambda: torch.zeros(4, 6)[:, ::2],
    lambda: torch.zeros(4, 5)[:, 1:4],
    lambda: torch.zeros(2, 4, 3)[1],
]


def laid(layout: Callable[[], torch.Tensor], value: float) -> torch.Tensor:
    """A tensor of that layout whose elements differ."""
    t = layout()
    t.copy_(value + torch.arange(12.0).view(4, 3) / 16)
    return t


def want(value: float) -> torch.Tensor:
    return value + torch.arange(12.0).view(4, 3) / 16


def whole(t: torch.Tensor, value: torch.Tensor) -> None:
    """The tensor holds it, and what lies between its elements is as it was."""
    assert torch.equal(t, value), (t, value)
    storage = torch.empty(0).set_(t.untyped_storage())
    assert storage.count_nonzero() == t.count_nonzero(), storage


def strided(rank: int, size: int) -> None:
    for i, layout in enumerate(LAYOUTS):
        # Inputs and outputs of different layouts.
        other = LAYOUTS[(i + 1) % len(LAYOUTS)]
        for root in {0, size - 1}:
            rooted(layout, other, rank, size, root)
        everywhere(layout, other, rank, size)
        scattered(layout, other, rank, size)


def rooted(layout: Callable, other: Callable, rank: int, size: int, root: int) -> None:
    """Calls with a root."""
    t = laid(layout, rank + 1.0)
    dist.broadcast(t, root)
    whole(t, want(root + 1.0))
    t = laid(layout, rank + 1.0)
    dist.reduce(t, root)
    whole(t, sum(want(r + 1.0) for r in range(size)) if rank == root else want(rank + 1.0))
    outs = [other() for _ in range(size)] if rank == root else None
    t = laid(layout, rank + 1.0)
    dist.gather(t, outs, dst=root)
    whole(t, want(rank + 1.0))
    for r, o in enumerate(outs or []):
        whole(o, want(r + 1.0))
    ins = [laid(layout, r + 1.0) for r in range(size)] if rank == root else None
    t = other()
    dist.scatter(t, ins, src=root)
    whole(t, want(rank + 1.0))


def everywhere(layout: Callable, other: Callable, rank: int, size: int) -> None:
    """Calls whose result all ranks get, also in the background."""
    t = laid(layout, rank + 1.0)
    dist.all_reduce(t)
    whole(t, sum(want(r + 1.0) for r in range(size)))
    for background in (False, True):
        outs = [other() for _ in range(size)]
        w = dist.all_gather(outs, laid(layout, rank + 1.0), async_op=background)
        if w is not None:
            w.wait()
        for r, o in enumerate(outs):
            whole(o, want(r + 1.0))
    out = torch.zeros(4 * size, 6)[:, ::2]
    dist.all_gather_into_tensor(out, laid(layout, rank + 1.0))
    whole(out, torch.cat([want(r + 1.0) for r in range(size)]))


def scattered(layout: Callable, other: Callable, rank: int, size: int) -> None:
    """Calls that give each rank a part of its own."""
    # Rank r gives 10 r + j to rank j.
    for background in (False, True):
        outs, ins = [other() for _ in range(size)], [laid(layout, 10.0 * rank + j + 1) for j in range(size)]
        w = dist.all_to_all(outs, ins, async_op=background)
        if w is not None:
            w.wait()
        for r, o in enumerate(outs):
            whole(o, want(10.0 * r + rank + 1))
        out = other()
        ins = [laid(layout, rank + j + 1.0) for j in range(size)]
        w = dist.reduce_scatter(out, ins, async_op=background)
        if w is not None:
            w.wait()
        whole(out, sum(want(r + rank + 1.0) for r in range(size)))
    # Columns of a wider one, and a transposed one.
    inp, out = torch.zeros(size, 6)[:, ::2], torch.zeros(3, size).t()
    inp.copy_(10.0 * rank + torch.arange(1.0, size + 1)[:, None])
    dist.all_to_all_single(out, inp)
    whole(out, (10.0 * torch.arange(size) + rank + 1)[:, None].expand(size, 3))
    rows = [j + 1 for j in range(size)]
    inp, out = torch.zeros(sum(rows), 6)[:, ::2], torch.zeros(3, size * (rank + 1)).t()
    inp.copy_(torch.cat([torch.full((j + 1, 3), 10.0 * rank + j + 1) for j in range(size)]))
    dist.all_to_all_single(out, inp, [rank + 1] * size, rows)
    whole(out, torch.cat([torch.full((rank + 1, 3), 10.0 * r + rank + 1) for r in range(size)]))
    inp = torch.zeros(3, 4 * size).t()
    inp.copy_(torch.cat([want(rank + j + 1.0) for j in range(size)]))
    out = other()
    dist.reduce_scatter_tensor(out, inp)
    whole(out, sum(want(r + rank + 1.0) for r in range(size)))


def sent(rank: int, size: int) -> None:
    """Sends and receives."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i, layout in enumerate(LAYOUTS):
        inp = LAYOUTS[(i + 1) % len(LAYOUTS)]()
        reqs = [dist.irecv(inp, left), dist.isend(laid(layout, rank + 1.0), right)]
        for q in reqs:
            q.wait()
        whole(inp, want(left + 1.0))
