"""Modules whose parameters are spread over the ranks, and come together only while they are used."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten

import comity
from comity.errors import MisuseError
from comity.mlx._groups import Group, of


class FullyShardedModule(nn.Module):
    """See `fully_shard`. The wrapped module is `module`; its parameters are this rank's parts along the first axis."""

    def __init__(self, module: nn.Module, group: Group, compute_dtype: mx.Dtype | None) -> None:
        super().__init__()
        self.module = module
        self.group = group
        self._compute_dtype = compute_dtype
        n, r = group.size(), group.rank()
        parts = []
        for path, x in _own(module):
            if x.ndim == 0:
                raise MisuseError(f"parameter {path} is a scalar, which cannot be sharded", r)
            if x.shape[0] % n:
                shape = tuple(x.shape)
                words = f"parameter {path} of shape {shape} cannot be sharded along its first axis across {n} ranks"
                raise MisuseError(words, r)
            step = x.shape[0] // n
            parts.append((path, mx.contiguous(x[r * step : (r + 1) * step])))
        module.update(tree_unflatten(parts))
        self._gather = _gather(comity.Group(group._raw), compute_dtype)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._whole(self.module, *args, **kwargs)

    def as_linear(self, *args: Any, **kwargs: Any) -> Any:
        """For embeddings that are used as the last layer as well."""
        return self._whole(self.module.as_linear, *args, **kwargs)

    def _whole(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        parts = _own(self.module)
        whole = self._gather([x for _, x in parts])
        names = [path for path, _ in parts]
        self.module.update(tree_unflatten(list(zip(names, whole, strict=True))))
        try:
            return call(*args, **kwargs)
        finally:
            self.module.update(tree_unflatten(parts))

    def _extra_repr(self) -> str:
        return f"ranks={self.group.size()}, compute_dtype={self._compute_dtype}"


def _own(module: nn.Module) -> list[tuple[str, mx.array]]:
    """The parameters of a module, those of fully sharded modules inside it left out."""
    inner = [path for path, m in module.named_modules() if path and isinstance(m, FullyShardedModule)]
    flat = tree_flatten(module.parameters())
    return [(p, x) for p, x in flat if not any(p.startswith(f"{i}.") for i in inner)]


def _gather(g: comity.Group, compute_dtype: mx.Dtype | None) -> Callable[[list[mx.array]], list[mx.array]]:
    """The parts of all ranks, put together; backwards, the mean of the gradients, of which each rank gets its part."""
    n = g.size

    def cast(x: mx.array) -> mx.array:
        return (
            x if compute_dtype is None or not mx.issubdtype(x.dtype, mx.floating) else x.astype(compute_dtype)
        )

    @mx.custom_function
    def gather(parts: list[mx.array]) -> list[mx.array]:
        whole = {}
        for batch in _by_type([cast(x) for x in parts]):
            joined = mx.concatenate([x.reshape(1, -1) for _, x in batch], axis=1)
            rows = g.all_gather(joined)
            at = 0
            for i, x in batch:
                shape = (n * x.shape[0], *x.shape[1:])
                whole[i] = rows[:, at : at + x.size].reshape(shape)
                at += x.size
        return [whole[i] for i in range(len(parts))]

    @gather.vjp
    def gather(parts: list[mx.array], cotangents: list[mx.array], _whole: list[mx.array]) -> list[mx.array]:
        mine = {}
        for batch in _by_type(list(cotangents)):
            joined = mx.concatenate([x.reshape(n, -1) for _, x in batch], axis=1)
            row = g.reduce_scatter(joined, "avg").reshape(-1)
            at = 0
            for i, x in batch:
                size = math.prod(x.shape) // n
                mine[i] = row[at : at + size].reshape(parts[i].shape).astype(parts[i].dtype)
                at += size
        return [mine[i] for i in range(len(parts))]

    return gather


def _by_type(arrays: list[mx.array]) -> list[list[tuple[int, mx.array]]]:
    """What may travel together."""
    batches: dict[mx.Dtype, list[tuple[int, mx.array]]] = {}
    for i, x in enumerate(arrays):
        batches.setdefault(x.dtype, []).append((i, x))
    return list(batches.values())


def fully_shard(
    module: nn.Module, *, group: comity.Group | None = None, compute_dtype: mx.Dtype | None = None
) -> nn.Module:
    """Spread a module's parameters over the ranks, along their first axes; they are gathered for each call of it.

    The gradients come averaged over all ranks, and each rank gets those of its part, so that the optimizer's state is spread as well. Wrap
    inner modules first: each wrapped module gathers its own. On one rank, and where nothing is left to shard, the module is returned
    as it is.

    Args:
        module: The module, the same on all ranks.
        group: Default: the group of the job.
        compute_dtype: The type to gather and compute in; the parts keep their own.
    """
    g = of(group)
    if g.size() == 1 or isinstance(module, FullyShardedModule) or not _own(module):
        return module
    return FullyShardedModule(module, g, compute_dtype)
