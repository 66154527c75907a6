"""What ranks do in `test_stacks.py` with torch.compile: every form in which a compiled function makes a call."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from collective_bodies import same

Form = Callable[[torch.Tensor], torch.Tensor]


def _reductions(rank: int, size: int) -> dict[Form, torch.Tensor]:
    """Forms that reduce, and the result of each on a tensor of ones."""
    n = 4 * size
    sums = torch.full((n,), 2.0 * size + 1)
    layer = torch.nn.Linear(n, 2, bias=False)
    torch.nn.init.ones_(layer.weight)

    def all_reduce(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def all_reduce_async(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        w = dist.all_reduce(y, async_op=True)
        w.wait()
        return y + 1

    def several_async(x: torch.Tensor) -> torch.Tensor:
        ys = [x * 2, x * 2]
        works = [dist.all_reduce(y, async_op=True) for y in ys]
        for w in works:
            w.wait()
        return ys[0] + ys[1] - 2 * size + 1

    def reduce_scatter_async(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(4)
        w = dist.reduce_scatter_tensor(y, x * 2, async_op=True)
        w.wait()
        return y + 1

    def reduce(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.reduce(y, 0)
        return y + 1 if rank == 0 else x * (2 * size + 1)

    def future(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        f = dist.all_reduce(y, async_op=True).get_future()
        f.wait()
        return y + 1

    def step(x: torch.Tensor) -> torch.Tensor:
        layer.zero_grad()
        layer(x).sum().backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in layer.parameters()]
        for w in works:
            w.wait()
        return layer.weight.grad[0] * 1.0

    alike = dict.fromkeys([all_reduce, all_reduce_async, several_async, reduce, future], sums)
    return alike | {reduce_scatter_async: sums[:4], step: torch.full((n,), float(size))}


def _moves(rank: int, size: int) -> dict[Form, torch.Tensor]:
    """Forms that move elements, and the result of each on a tensor of ones."""
    n = 4 * size

    def broadcast_async(x: torch.Tensor) -> torch.Tensor:
        y = x * (rank + 2)
        dist.broadcast(y, 0, async_op=True).wait()
        return y - 1

    def all_gather(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(size * n)
        dist.all_gather_into_tensor(y, x * 2)
        return y - 1

    def all_gather_async(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(size * n)
        w = dist.all_gather_into_tensor(y, x * 2, async_op=True)
        w.wait()
        return y - 1

    def all_to_all_async(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(n)
        w = dist.all_to_all_single(y, x * 2, async_op=True)
        w.wait()
        return y - 1

    gathered = dict.fromkeys([all_gather, all_gather_async], torch.ones(size * n))
    return gathered | dict.fromkeys([broadcast_async, all_to_all_async], torch.ones(n))


def forms(rank: int, size: int) -> list[str]:
    """All forms, compiled and called twice; the names of those that fail, with their errors."""
    failed = []
    # These processes ran others before, with other numbers of ranks.
    torch._dynamo.reset()
    x = torch.ones(4 * size)
    for f, expected in (_reductions(rank, size) | _moves(rank, size)).items():
        compiled = torch.compile(f, backend="aot_eager")
        try:
            for _ in range(2):
                same(compiled(x), expected)
        except Exception as e:
            failed.append(f"{f.__name__}: {type(e).__name__}: {e}")
    torch._dynamo.reset()
    dist.barrier()
    return failed
