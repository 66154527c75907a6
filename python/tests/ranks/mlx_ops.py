"""The operations of `comity.mlx` and their gradients, against what they stand for."""

import mlx.core as mx
import pytest

import comity
from comity import mlx as dist


def check_groups_are_called_as_in_mlx(g: comity.Group) -> None:
    group = dist.init()
    assert group is dist.init()
    assert (group.rank(), group.size()) == (g.rank, g.size)
    assert isinstance(group.split(0), dist.Group)
    assert dist.is_available()
    assert not dist.is_available("nccl")
    with pytest.raises(comity.ConfigError, match="no backend 'smoke'"):
        dist.init(backend="smoke")


def check_operations(g: comity.Group) -> None:
    n, r = g.size, g.rank
    x = mx.arange(2.0 * n) + r
    parts = [mx.arange(2.0 * n) + s for s in range(n)]
    total = mx.stack(parts).sum(0)
    assert mx.array_equal(dist.all_sum(x), total)
    assert mx.array_equal(dist.all_max(x), parts[-1])
    assert mx.array_equal(dist.all_min(x), parts[0])
    assert mx.array_equal(dist.all_gather(x), mx.concatenate(parts))
    assert mx.array_equal(dist.sum_scatter(x), total[2 * r : 2 * r + 2])
    assert mx.array_equal(dist.all_to_all(x), mx.concatenate([p[2 * r : 2 * r + 2] for p in parts]))
    assert mx.array_equal(dist.broadcast(x, n - 1), parts[-1])
    assert dist.all_sum(2.5).item() == 2.5 * n
    assert dist.all_sum(x, stream=mx.cpu, group=dist.init()).shape == x.shape
    if n == 1:
        assert dist.all_sum(x) is x
        with pytest.raises(comity.MisuseError, match="group of one"):
            dist.send(x, 0)
        return
    right, left = (r + 1) % n, (r - 1) % n
    if r % 2 == 0 and r + 1 < n:
        assert dist.send(x, right) is x
    if r % 2:
        assert mx.array_equal(dist.recv_like(x, left), parts[left])
    if r == 0:
        dist.send(x.astype(mx.bfloat16), n - 1)
    if r == n - 1:
        got = dist.recv(x.shape, mx.bfloat16, 0)
        assert mx.array_equal(got, parts[0].astype(mx.bfloat16))


def check_gradients(g: comity.Group) -> None:
    n, r = g.size, g.rank
    x = mx.arange(3.0) + 1 + r
    weights = mx.array([1.0, -2.0, 3.0])

    def of(op) -> mx.array:
        return mx.grad(lambda v: (op(v) * weights).sum())(x)

    # What follows is the same on all ranks, so each rank's gradient is that of its own argument.
    assert mx.array_equal(of(dist.all_sum), weights)
    # Only the last rank has the greatest, only the first the least.
    assert mx.array_equal(of(dist.all_max), weights * (r == n - 1))
    assert mx.array_equal(of(dist.all_min), weights * (r == 0))
    tie = mx.grad(lambda v: dist.all_max(v).sum())(mx.ones((2,)))
    assert mx.allclose(tie, mx.full((2,), 1 / n))
    gathered = mx.arange(3.0 * n)
    got = mx.grad(lambda v: (dist.all_gather(v) * gathered).sum())(x)
    assert mx.array_equal(got, gathered[3 * r : 3 * r + 3])
    scalars = mx.grad(lambda v: (dist.all_gather(v) * mx.arange(1.0, n + 1)).sum())(mx.array(2.0))
    assert scalars.item() == (r + 1 if n > 1 else 1)
    long = mx.ones((2 * n,))
    got = mx.grad(lambda v: (dist.sum_scatter(v) * mx.array([1.0, 2.0]) * (r + 1)).sum())(long)
    assert mx.array_equal(got, mx.concatenate([mx.array([1.0, 2.0]) * (s + 1) for s in range(n)]))
    got = mx.grad(lambda v: (dist.all_to_all(v) * (r + 1)).sum())(long)
    assert mx.array_equal(got, mx.concatenate([mx.full((2,), s + 1.0) for s in range(n)]))
    added = mx.grad(lambda v: (dist.sum_gradients()(v) * (r + 1)).sum())(x)
    assert mx.array_equal(added, mx.full((3,), float(sum(range(1, n + 1)))))
    # Through other functions, and twice.
    got = mx.grad(lambda v: (dist.all_sum(v * v) ** 2).sum())(x)
    total = sum((mx.arange(3.0) + 1 + s) ** 2 for s in range(n))
    assert mx.allclose(got, 4 * total * x)
    if n > 1:
        _, (tangent,) = mx.jvp(dist.all_sum, [x], [mx.ones((3,)) * (r + 1)])
        assert mx.array_equal(tangent, mx.full((3,), float(sum(range(1, n + 1)))))


def check_transformations_are_refused_with_words(g: comity.Group) -> None:
    if g.size == 1:
        return
    with pytest.raises(comity.MisuseError, match=r"mx\.compile"):
        mx.compile(lambda v: dist.all_sum(v) + 1)(mx.ones((2,)))
    with pytest.raises(comity.MisuseError, match=r"mx\.vmap"):
        mx.vmap(dist.all_sum)(mx.ones((2, 2)))
    assert dist.all_sum(1.0).item() == g.size
