"""The sharded layers against the whole layers on one process: outputs, gradients, shapes and refusals."""

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten

import comity
from comity import mlx as dist


def part(x: mx.array, axis: int, g: comity.Group) -> mx.array:
    return mx.split(x, g.size, axis)[g.rank]


def close(a: mx.array, b: mx.array, tolerance: float = 1e-5) -> None:
    assert a.shape == b.shape
    assert mx.allclose(a, b, rtol=tolerance, atol=tolerance), mx.abs(a - b).max().item()


def check_linear_pair(g: comity.Group) -> None:
    """As MLX's own test: a stack of sharded layers gives the outputs and gradients of the whole stack."""
    mx.random.seed(7)
    whole = nn.Sequential(
        nn.Linear(24, 48), nn.Linear(48, 24), nn.Linear(24, 48, bias=False), nn.Linear(48, 24, bias=False)
    )
    mx.eval(whole.parameters())
    sharded = nn.Sequential(
        *(
            dist.shard_linear(layer, "sharded-to-all" if i % 2 else "all-to-sharded")
            for i, layer in enumerate(whole.layers)
        )
    )
    x, y = mx.random.normal((4, 24)), mx.random.normal((4, 24))
    close(sharded(x), whole(x))

    def loss(model: nn.Module, x: mx.array, y: mx.array) -> mx.array:
        return ((model(x) - y) ** 2).mean()

    l1, grads1 = nn.value_and_grad(whole, loss)(whole, x, y)
    l2, grads2 = nn.value_and_grad(sharded, loss)(sharded, x, y)
    close(l1, l2)
    for i in range(4):
        axis = 1 if i % 2 else 0
        close(part(grads1["layers"][i]["weight"], axis, g), grads2["layers"][i]["weight"], 1e-4)
        if i < 2:
            bias = grads1["layers"][i]["bias"]
            close(bias if i % 2 else part(bias, 0, g), grads2["layers"][i]["bias"], 1e-4)
    dx1 = mx.grad(lambda v: (whole(v) * y).sum())(x)
    dx2 = mx.grad(lambda v: (sharded(v) * y).sum())(x)
    close(dx1, dx2, 1e-4)


def check_quantized(g: comity.Group) -> None:
    mx.random.seed(8)
    n = g.size
    for mode, group_size, bits in [("affine", 32, 4), ("affine", 64, 8), ("mxfp8", 32, 8), ("mxfp4", 32, 4)]:
        dims = 64 * n * 2
        layer = nn.Linear(dims, dims)
        quantized = nn.QuantizedLinear.from_linear(layer, group_size, bits, mode=mode)
        x = mx.random.normal((3, dims))
        expected = quantized(x)
        up = dist.shard_linear(quantized, "all-to-sharded")
        close(up(x), part(expected, -1, g), 1e-4)
        down = dist.shard_linear(quantized, "sharded-to-all")
        close(down(part(x, -1, g)), expected, 1e-3)
        assert not down.trainable_parameters()
        down.unfreeze()
        assert "weight" not in down.trainable_parameters()
        dx1 = mx.grad(lambda v, q=quantized: q(v).sum())(x)
        dx2 = mx.grad(lambda v, u=up: u(v).sum())(x)
        close(dx1, dx2, 1e-2)
        assert f"ranks={n}" in repr(down)
        assert f"input_dims={dims}, output_dims={dims}" in repr(down)
        assert f"input_dims={dims}, output_dims={dims}" in repr(up)


def check_new_layers_begin_as_parts_of_the_whole(g: comity.Group) -> None:
    n = g.size
    for cls, axis in [(dist.AllToShardedLinear, 0), (dist.ShardedToAllLinear, 1)]:
        mx.random.seed(3)
        whole = nn.Linear(4 * n, 6 * n)
        mx.random.seed(3)
        layer = cls(4 * n, 6 * n)
        assert isinstance(layer, nn.Linear)
        close(layer.weight, part(whole.weight, axis, g))
        close(layer.bias, part(whole.bias, 0, g) if axis == 0 else whole.bias)
        assert "bias" not in cls(4 * n, 6 * n, bias=False)
        assert f"input_dims={4 * n}, output_dims={6 * n}" in repr(layer)
    for cls in (dist.QuantizedAllToShardedLinear, dist.QuantizedShardedToAllLinear):
        layer = cls(64 * n, 32 * n, group_size=32, bits=4)
        assert isinstance(layer, nn.QuantizedLinear)
        width = 64 if cls is dist.QuantizedShardedToAllLinear else 64 * n
        assert layer(mx.ones((2, width))).shape[0] == 2


def check_segments(g: comity.Group) -> None:
    """Fused queries, keys and values: each rank gets its part of each."""
    n, r = g.size, g.rank
    sizes = [8 * n, 4 * n, 4 * n]
    weight = mx.arange(16.0 * n * 4).reshape(16 * n, 4)
    fused = nn.Linear(4, 16 * n)
    fused.weight, fused.bias = weight, weight[:, 0]
    starts = np.cumsum([0, *sizes])
    expected = mx.concatenate(
        [weight[s + size // n * r : s + size // n * (r + 1)] for s, size in zip(starts, sizes, strict=False)]
    )
    for segments in ([8 * n, 12 * n], [0.5, 0.75]):
        layer = dist.shard_linear(fused, "all-to-sharded", segments=segments)
        close(layer.weight, expected)
        close(layer.bias, expected[:, 0])
    thirds = nn.Linear(4, 12 * n)
    got = dist.shard_linear(thirds, "all-to-sharded", segments=3)
    close(got.weight, mx.concatenate([part(p, 0, g) for p in mx.split(thirds.weight, 3)]))
    # The rows of a quantized layer's inputs, in units of what they stand for.
    quantized = nn.QuantizedLinear.from_linear(nn.Linear(96 * n, 8), 32, 4)
    down = dist.shard_linear(quantized, "sharded-to-all", segments=[64 * n])
    x = mx.random.normal((2, 96 * n), key=mx.random.key(1))
    mine = mx.concatenate([part(x[:, : 64 * n], 1, g), part(x[:, 64 * n :], 1, g)], axis=1)
    close(down(mine), quantized(x), 1e-4)


def check_inplace(g: comity.Group) -> None:
    model = nn.Sequential(nn.Linear(4 * g.size, 8 * g.size), nn.ReLU(), nn.Linear(8 * g.size, 3))
    first, last = model.layers[0].weight, model.layers[2].weight
    bias = model.layers[2].bias
    dist.shard_inplace(model.layers[0], "all-to-sharded")
    dist.shard_inplace(model.layers[2], "sharded-to-all")
    close(model.layers[0].weight, part(first, 0, g))
    close(model.layers[2].weight, part(last, 1, g))
    close(model.layers[2].bias, bias)
    # By a rule: as MLX's test with convolutions.
    stack = nn.Sequential(nn.Conv2d(4, 8 * g.size, 3), nn.Conv2d(8 * g.size, 4, 3))
    before = dict(tree_flatten(stack.parameters()))

    def rule(path: str, x: mx.array):
        if path.startswith("layers.0"):
            return (0, 2) if x.ndim == 4 else 0
        return -1 if x.ndim == 4 else None

    dist.shard_inplace(stack, rule)
    after = dict(tree_flatten(stack.parameters()))
    halves = mx.split(before["layers.0.weight"], 2, 0)
    close(after["layers.0.weight"], mx.concatenate([part(h, 0, g) for h in halves]))
    close(after["layers.0.bias"], part(before["layers.0.bias"], 0, g))
    close(after["layers.1.weight"], part(before["layers.1.weight"], -1, g))
    close(after["layers.1.bias"], before["layers.1.bias"])


def check_a_sharded_layer_can_be_quantized(g: comity.Group) -> None:
    mx.random.seed(5)
    n = g.size
    model = nn.Sequential(nn.Linear(64, 64 * n), nn.Linear(64 * n, 64))
    model.layers[0] = dist.shard_linear(model.layers[0], "all-to-sharded")
    model.layers[1] = dist.shard_linear(model.layers[1], "sharded-to-all")
    x = mx.random.normal((2, 64), key=mx.random.key(2))
    before = model(x)
    nn.quantize(model, group_size=32, bits=8)
    assert isinstance(model.layers[0], dist.QuantizedAllToShardedLinear)
    assert isinstance(model.layers[1], dist.QuantizedShardedToAllLinear)
    close(model(x), before, 0.05)


def check_refusals(g: comity.Group) -> None:
    n = g.size
    odd = nn.Linear(4 * n + 1, 6 * n + 1)
    for words, call in {
        "there is no sharding": lambda: dist.shard_linear(odd, "sideways"),
        "there is no sharding ": lambda: dist.shard_inplace(odd, "sideways"),
        "neither nn.Linear": lambda: dist.shard_linear(nn.ReLU(), "all-to-sharded"),
        "equal segments": lambda: dist.shard_linear(nn.Linear(4, 6 * n), "all-to-sharded", segments=5),
        "in order": lambda: dist.shard_linear(nn.Linear(4, 6 * n), "all-to-sharded", segments=[4 * n, 2 * n]),
        "gives an axis": lambda: dist.shard_inplace(odd, lambda _p, _x: "rows"),
    }.items():
        with pytest.raises(comity.MisuseError, match=words):
            call()
    if n == 1:
        return
    for words, call in {
        "cannot be sharded across": lambda: dist.shard_linear(odd, "all-to-sharded"),
        "cannot be sharded across ": lambda: dist.AllToShardedLinear(4, 6 * n + 1),
        "input of size": lambda: dist.ShardedToAllLinear(4 * n + 1, 6),
        "whole groups of 64": lambda: dist.shard_linear(
            nn.QuantizedLinear(64, 8, group_size=64), "sharded-to-all"
        ),
    }.items():
        with pytest.raises(comity.MisuseError, match=words):
            call()
    assert g.all_sum(1) == n
