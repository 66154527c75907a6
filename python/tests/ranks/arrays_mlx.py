"""MLX arrays through every operation: MLX's come back, of the same type."""

import mlx.core as mx
import numpy as np
import pytest

import comity

DTYPES = [
    mx.bool_,
    mx.uint8,
    mx.uint16,
    mx.uint32,
    mx.uint64,
    mx.int8,
    mx.int16,
    mx.int32,
    mx.int64,
    mx.float16,
    mx.bfloat16,
    mx.float32,
    mx.complex64,
]


def of_rank(rank: int, shape: tuple[int, ...], dtype: mx.Dtype = mx.float32) -> mx.array:
    n = int(np.prod(shape))
    values = (mx.arange(n) * 7 + rank * 3) % (2 if dtype == mx.bool_ else 5)
    return values.reshape(shape).astype(dtype)


def same(got: mx.array, expected: mx.array) -> None:
    assert isinstance(got, mx.array)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert mx.array_equal(got, expected), f"{got} is not {expected}"


def total(parts: list[mx.array]) -> mx.array:
    s = parts[0]
    for p in parts[1:]:
        s = mx.logical_or(s, p) if s.dtype == mx.bool_ else s + p
    return s


def check_every_type(g: comity.Group) -> None:
    for dtype in DTYPES:
        for shape in [(), (1,), (2, 3), (1031,)]:
            parts = [of_rank(r, shape, dtype) for r in range(g.size)]
            x = of_rank(g.rank, shape, dtype)
            same(g.all_sum(x), total(parts))
            same(x, of_rank(g.rank, shape, dtype))
            same(g.all_gather(x), mx.stack(parts) if shape == () else mx.concatenate(parts))
            same(g.broadcast(x, g.size - 1), parts[-1])
    double = mx.ones((3,), mx.float64, stream=mx.cpu)
    assert g.all_sum(double).dtype == mx.float64
    assert g.all_sum(mx.zeros((0, 4))).shape == (0, 4)


def check_views_and_unevaluated_arrays(g: comity.Group) -> None:
    parts = [of_rank(r, (4, 6)) for r in range(g.size)]
    x = of_rank(g.rank, (4, 6))
    same(g.all_sum(x.T), total(parts).T)
    same(g.all_sum(x[:, ::2]), total(parts)[:, ::2])
    same(g.all_sum(x[1:]), total(parts)[1:])
    same(g.all_sum(mx.broadcast_to(x[0], (3, 6))), mx.broadcast_to(total(parts)[0], (3, 6)))
    same(g.all_sum(x * 2 + 1), total([p * 2 + 1 for p in parts]))


def check_results_are_arrays_of_their_own(g: comity.Group) -> None:
    x = mx.ones((4,))
    first, second = g.all_sum(x), g.all_sum(x * 2)
    same(first, mx.full((4,), float(g.size)))
    same(second, mx.full((4,), 2.0 * g.size))
    same(mx.zeros((4,)), mx.array([0.0] * 4))


def check_parts_and_sends(g: comity.Group) -> None:
    n, r = g.size, g.rank
    x = mx.arange(2 * n) * (r + 1)
    same(g.sum_scatter(x), (mx.arange(2 * n) * sum(range(1, n + 1)))[2 * r : 2 * r + 2])
    same(g.all_to_all(x), mx.concatenate([mx.arange(2 * n)[2 * r : 2 * r + 2] * (s + 1) for s in range(n)]))
    if n == 1:
        return
    same(g.sendrecv(x, (r + 1) % n, (r - 1) % n), mx.arange(2 * n) * ((r - 1) % n + 1))
    if r == 0:
        g.send(mx.ones((2, 2), mx.bfloat16), n - 1)
    if r == n - 1:
        same(g.recv((2, 2), mx.bfloat16, 0), mx.ones((2, 2), mx.bfloat16))


def check_refusals(g: comity.Group) -> None:
    x = mx.ones((2,))
    with pytest.raises(comity.MisuseError, match="cannot be changed"):
        g.all_sum(x, out=x)
    with pytest.raises(comity.MisuseError, match=r"mx\.compile"):
        mx.compile(g.all_sum)(x)
    with pytest.raises(comity.MisuseError, match=r"mx\.vmap"):
        mx.vmap(g.all_sum)(mx.ones((2, 3)))
    same(g.all_sum(x), x * g.size)
