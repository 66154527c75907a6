"""The package's functions on arrays of torch, JAX, MLX, DLPack and the buffer protocol, with the numbers that NumPy's give."""

import array
import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import mlx.core as mx
import numpy as np
import torch

import comity
from ranks.arrays_other import Standard


class Library(NamedTuple):
    """Arrays of one kind: from NumPy's, and back."""

    of: Callable[[np.ndarray], Any]
    back: Callable[[Any], np.ndarray]
    type: type
    dtypes: tuple[Any, ...]
    # What lies behind the first axis; a buffer has one axis only.
    rest: tuple[int, ...] = (3,)
    objects: bool = True


def torch_of(x: np.ndarray) -> torch.Tensor:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.astype(np.float32)).bfloat16()
    return torch.from_numpy(x.copy())


def torch_back(x: torch.Tensor) -> np.ndarray:
    return x.float().numpy().astype(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def mlx_of(x: np.ndarray) -> mx.array:
    return (
        mx.array(x.astype(np.float32)).astype(mx.bfloat16) if x.dtype == ml_dtypes.bfloat16 else mx.array(x)
    )


def mlx_back(x: mx.array) -> np.ndarray:
    if x.dtype == mx.bfloat16:
        return np.array(x.astype(mx.float32)).astype(ml_dtypes.bfloat16)
    return np.array(x)


SHARED = (np.float32, np.int32, np.uint8, np.float16, ml_dtypes.bfloat16, np.complex64)
LIBRARIES = {
    "torch": Library(torch_of, torch_back, torch.Tensor, (*SHARED, np.float64, np.int64)),
    "JAX": Library(jnp.asarray, np.asarray, jax.Array, SHARED),
    "MLX": Library(mlx_of, mlx_back, mx.array, (*SHARED, np.int64)),
    "DLPack": Library(Standard, lambda x: x.values, Standard, (np.float32, np.int64), objects=False),
    "buffers": Library(
        lambda x: array.array(x.dtype.char, x.tolist()),
        lambda x: np.frombuffer(x, x.typecode),
        array.array,
        (np.float32, np.float64, np.int32),
        rest=(),
        objects=False,
    ),
}


class Case(NamedTuple):
    """One library and type in a group: what every rank has, as NumPy's."""

    library: Library
    dtype: Any
    size: int

    def given(self, rows: int, rank: int) -> np.ndarray:
        """What `rank` gives: `rows` along the first axis, whole and small, so that every type holds sums of them."""
        shape = (rows, *self.library.rest)
        return ((np.arange(np.prod(shape)) * 3 + rank) % 7).reshape(shape).astype(self.dtype)

    def all(self, rows: int) -> list[np.ndarray]:
        return [self.given(rows, r) for r in range(self.size)]

    def total(self, rows: int) -> np.ndarray:
        return sum(self.all(rows)[1:], start=self.given(rows, 0))

    def same(self, got: Any, expected: np.ndarray) -> None:
        assert isinstance(got, self.library.type)
        back = self.library.back(got)
        assert back.dtype == expected.dtype
        np.testing.assert_array_equal(back, expected)


def cases(g: comity.Group) -> list[Case]:
    return [Case(lib, np.dtype(dtype), g.size) for lib in LIBRARIES.values() for dtype in lib.dtypes]


def check_whole_arrays(g: comity.Group) -> None:
    for c in cases(g):
        x = c.library.of(c.given(4, g.rank))
        c.same(comity.all_reduce(x), c.total(4))
        c.same(comity.broadcast(x, g.size - 1), c.given(4, g.size - 1))
        c.same(comity.all_gather(x), np.concatenate(c.all(4)))
        for root in range(g.size):
            reduced, gathered = comity.reduce(x, root), comity.gather(x, root)
            if g.rank == root:
                c.same(reduced, c.total(4))
                c.same(gathered, np.concatenate(c.all(4)))
            else:
                assert reduced is None
                assert gathered is None


def check_parts(g: comity.Group) -> None:
    n, r = g.size, g.rank
    for c in cases(g):
        x, mine = c.library.of(c.given(2 * n, r)), slice(2 * r, 2 * r + 2)
        c.same(comity.reduce_scatter(x), c.total(2 * n)[mine])
        c.same(comity.reduce_scatter(x), c.total(2 * n)[mine])
        c.same(comity.all_to_all(x), np.concatenate([given[mine] for given in c.all(2 * n)]))
        like = c.library.of(c.given(2, 0))
        for root in range(n):
            c.same(comity.scatter(x, root, like=like), c.given(2 * n, root)[mine])


def check_parts_of_different_sizes(g: comity.Group) -> None:
    n, r = g.size, g.rank
    counts = [s + 1 for s in range(n)]
    total, before = sum(counts), sum(counts[:r])
    for c in cases(g):
        part = c.library.of(c.given(counts[r], r))
        c.same(
            comity.all_gather(part, counts=counts), np.concatenate([c.given(counts[s], s) for s in range(n)])
        )
        x, mine = c.library.of(c.given(total, r)), slice(before, before + counts[r])
        c.same(comity.reduce_scatter(x, counts=counts), c.total(total)[mine])
        got = comity.all_to_all(x, send_counts=counts, recv_counts=[counts[r]] * n)
        c.same(got, np.concatenate([given[mine] for given in c.all(total)]))


def check_sends(g: comity.Group) -> None:
    n, r = g.size, g.rank
    for c in cases(g):
        x = c.library.of(c.given(5, r))
        if n > 1:
            c.same(comity.sendrecv(x, (r + 1) % n, (r - 1) % n), c.given(5, (r - 1) % n))
        if r == 0 < n - 1:
            comity.send(x, n - 1, tag=3)
        if r == n - 1 > 0:
            c.same(g.recv_like(x, 0, tag=3), c.given(5, 0))


def check_requests(g: comity.Group) -> None:
    async def summed(x: Any) -> Any:
        return await comity.all_reduce(x, async_=True)

    for c in cases(g):
        x = c.library.of(c.given(4, g.rank))
        c.same(comity.all_reduce(x, async_=True).wait(), c.total(4))
        c.same(asyncio.run(summed(x)), c.total(4))


def check_objects(g: comity.Group) -> None:
    last = g.size - 1
    for c in cases(g):
        if not c.library.objects:
            continue
        x = c.library.of(c.given(4, g.rank))
        c.same(
            comity.broadcast_object({"x": [x]} if g.rank == last else None, last)["x"][0], c.given(4, last)
        )
        for r, found in enumerate(comity.all_gather_object((x, g.rank))):
            assert found[1] == r
            c.same(found[0], c.given(4, r))
        given = [c.library.of(c.given(r + 1, r)) for r in range(g.size)]
        c.same(comity.scatter_object(given if g.rank == 0 else None, 0), c.given(g.rank + 1, g.rank))
