"""Gradients of data-parallel and fully sharded training, against one process that sees all the data."""

from collections.abc import Callable

import mlx.core as mx
import pytest
from mlx import nn, optimizers
from mlx.utils import tree_flatten, tree_map

import comity
from comity import mlx as dist


def close(a: mx.array, b: mx.array, tolerance: float = 1e-5) -> None:
    assert a.shape == b.shape
    assert mx.allclose(a, b, rtol=tolerance, atol=tolerance), mx.abs(a - b).max().item()


def check_average_gradients(g: comity.Group) -> None:
    """As MLX's own test: how many calls there are, and what comes out."""
    n, r = g.size, g.rank
    gradients = [mx.ones((10,)) * (i + r) for i in range(10)]
    mean = sum(range(n)) / n
    for size, batches in {32 * 1024**2: 1, 4 * 50: 2, 0: 10, -1: 10}.items():
        before = g.stats()["calls"]
        averaged = dist.average_gradients(gradients, all_reduce_size=size)
        assert g.stats()["calls"] - before == (batches if n > 1 else 0)
        for i, x in enumerate(averaged):
            close(x, mx.full((10,), i + mean))
            close(gradients[i], mx.ones((10,)) * (i + r))
    nested = {"a": [mx.ones((2, 3)) * r, {"b": mx.array(float(r))}], "c": mx.ones((5,), mx.bfloat16) * r}
    averaged = dist.average_gradients(nested)
    close(averaged["a"][0], mx.full((2, 3), mean))
    close(averaged["a"][1]["b"], mx.array(mean))
    assert averaged["c"].dtype == mx.bfloat16
    close(averaged["c"], mx.full((5,), mean, mx.bfloat16))
    assert dist.average_gradients({}) == {}
    sent = g.stats()["bytes_sent"]
    wide = dist.average_gradients([mx.ones((1000,)) * r, mx.ones((24,))])
    whole = g.stats()["bytes_sent"] - sent
    sent = g.stats()["bytes_sent"]
    narrow = dist.average_gradients([mx.ones((1000,)) * r, mx.ones((24,))], communication_type=mx.bfloat16)
    assert n == 1 or g.stats()["bytes_sent"] - sent == whole / 2
    assert narrow[0].dtype == mx.float32
    close(narrow[0], wide[0], 0.01)
    sent = g.stats()["bytes_sent"]
    wired = dist.average_gradients([mx.ones((1000,)) * r, mx.ones((24,))], wire="bf16")
    assert n == 1 or g.stats()["bytes_sent"] - sent < 0.6 * whole
    assert wired[0].dtype == mx.float32
    close(wired[0], wide[0], 0.01)


def check_memory_of_gradients(g: comity.Group) -> None:
    """A copy that Comity makes, of another type or in another order, is the memory of the result too."""
    n = 1 << 18
    x = mx.arange(n, dtype=mx.float32).reshape(512, -1) * (g.rank + 1)
    crossed = x.T
    mx.eval(x, crossed)

    def peak(call: Callable[[], mx.array]) -> tuple[mx.array, int]:
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        result = call()
        return result, mx.get_peak_memory() - before

    page = 1 << 16
    total, most = peak(lambda: g.all_sum(crossed))
    assert n * 4 <= most < n * 4 + page or g.size == 1
    factor = g.size * (g.size + 1) / 2
    close(total, mx.arange(n, dtype=mx.float32).reshape(512, -1).T * factor)
    averaged, most = peak(lambda: dist.average_gradients([x], communication_type=mx.bfloat16)[0])
    assert n * 2 <= most < n * 2 + page or g.size == 1
    close(averaged, mx.arange(n, dtype=mx.float32).reshape(512, -1) * factor / g.size, 0.02)
    close(x, mx.arange(n, dtype=mx.float32).reshape(512, -1) * (g.rank + 1))


def check_clip(g: comity.Group) -> None:
    gradients = {"w": mx.full((3,), float(g.rank + 1)), "b": mx.array([2.0])}
    norm = (sum(3 * (s + 1) ** 2 + 4 for s in range(g.size))) ** 0.5
    clipped, got = dist.clip_grad_norm_sharded(gradients, 0.5)
    assert got.item() == pytest.approx(norm)
    close(clipped["w"], gradients["w"] * (0.5 / (norm + 1e-6)))
    same, _ = dist.clip_grad_norm_sharded(gradients, 1000.0)
    close(same["b"], gradients["b"])


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(width, width)
        self.first = nn.Linear(width, 2 * width)
        self.last = nn.Linear(2 * width, width)

    def __call__(self, x: mx.array) -> mx.array:
        return self.embed.as_linear(self.last(nn.relu(self.first(self.embed(x)))))


def loss(model: nn.Module, x: mx.array, y: mx.array) -> mx.array:
    return nn.losses.cross_entropy(model(x), y).mean()


def net(width: int) -> Net:
    mx.random.seed(11)
    model = Net(width)
    mx.eval(model.parameters())
    return model


def batch(width: int, rank: int, step: int) -> tuple[mx.array, mx.array]:
    key = mx.random.key(100 * step + rank)
    return mx.random.randint(0, width, (8,), key=key), mx.random.randint(0, width, (8,), key=key)


def train_whole(width: int, ranks: int, steps: int) -> dict[str, mx.array]:
    """One process with the data of all ranks."""
    model, optimizer = net(width), optimizers.AdamW(0.01)
    for step in range(steps):
        grads = []
        for rank in range(ranks):
            grads.append(nn.value_and_grad(model, loss)(model, *batch(width, rank, step))[1])
        mean = tree_map(lambda *xs: sum(xs) / ranks, *grads)
        optimizer.update(model, mean)
        mx.eval(model.parameters())
    return dict(tree_flatten(model.parameters()))


def check_data_parallel_training_equals_one_process(g: comity.Group) -> None:
    width, steps = 12, 4
    model, optimizer = net(width), optimizers.AdamW(0.01)
    for step in range(steps):
        _, grads = nn.value_and_grad(model, loss)(model, *batch(width, g.rank, step))
        optimizer.update(model, dist.average_gradients(grads))
        mx.eval(model.parameters())
    expected = train_whole(width, g.size, steps)
    for name, x in tree_flatten(model.parameters()):
        close(x, expected[name], 1e-4)


def check_fully_sharded_training_equals_one_process(g: comity.Group) -> None:
    width, steps = 12, 4
    model, optimizer = net(width), optimizers.AdamW(0.01)
    # The embedding is used by itself and as the last layer; the first layer is wrapped inside the model.
    model.first = dist.fully_shard(model.first)
    model.last = dist.fully_shard(model.last)
    model.embed = dist.fully_shard(model.embed)
    if g.size > 1:
        assert model.first.module.weight.shape == (2 * width // g.size, width)
    for step in range(steps):
        _, grads = nn.value_and_grad(model, loss)(model, *batch(width, g.rank, step))
        optimizer.update(model, grads)
        mx.eval(model.parameters())
    expected = train_whole(width, g.size, steps)
    for name, x in tree_flatten(model.parameters()):
        whole = g.all_gather(x) if g.size > 1 else x
        close(whole, expected[name.replace(".module", "")], 1e-4)


def check_fully_shard_the_whole_model(g: comity.Group) -> None:
    width = 12
    model = net(width)
    model.first = dist.fully_shard(model.first)
    wrapped = dist.fully_shard(model, compute_dtype=mx.bfloat16)
    assert dist.fully_shard(wrapped) is wrapped
    x, y = batch(width, g.rank, 0)
    got, grads = nn.value_and_grad(wrapped, loss)(wrapped, x, y)
    exact = loss(net(width), x, y)
    assert got.item() == pytest.approx(exact.item(), rel=0.05)
    flat = dict(tree_flatten(grads))
    for name, p in tree_flatten(wrapped.parameters()):
        assert p.dtype == mx.float32
        assert flat[name].shape == p.shape
        assert flat[name].dtype == mx.float32
    if g.size > 1:
        assert isinstance(wrapped, dist.FullyShardedModule)
        assert "module.first.module.weight" in flat
        total = g.all_sum(sum(x.size for x in flat.values()))
        assert total == sum(x.size for _, x in tree_flatten(net(width).parameters()))


def check_refusals(g: comity.Group) -> None:
    if g.size == 1:
        return
    odd = nn.Linear(4, 4 * g.size + 1)
    with pytest.raises(comity.MisuseError, match="parameter weight of shape"):
        dist.fully_shard(odd)
    scalar = nn.Module()
    scalar.s = mx.array(1.0)
    with pytest.raises(comity.MisuseError, match="parameter s is a scalar"):
        dist.fully_shard(scalar)
    assert g.all_sum(1) == g.size
