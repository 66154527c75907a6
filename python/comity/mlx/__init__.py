"""MLX models on several ranks: the names of `mx.distributed`, and the layers and gradient functions of `mlx.nn`.

A script of MLX changes one import::

    from comity.mlx import mx    # in place of: import mlx.core as mx

and `mx.distributed` is Comity, also for `mlx.nn` and for libraries such as mlx-lm. New scripts can say what they mean::

    from comity import mlx as dist

    group = dist.init()
    gradients = dist.average_gradients(gradients)

Calls communicate when they are made, not when their result is evaluated, so they cannot stand inside `mx.compile` and `mx.vmap`; `mx.grad`
and `nn.value_and_grad` go through them.
"""

from typing import Any

from comity.mlx._fsdp import FullyShardedModule, fully_shard
from comity.mlx._gradients import average_gradients, clip_grad_norm_sharded
from comity.mlx._groups import Group, init, is_available
from comity.mlx._layers import (
    AllToShardedLinear,
    QuantizedAllToShardedLinear,
    QuantizedShardedToAllLinear,
    ShardedToAllLinear,
    shard_linear,
)
from comity.mlx._ops import (
    all_gather,
    all_max,
    all_min,
    all_sum,
    all_to_all,
    barrier,
    broadcast,
    recv,
    recv_like,
    send,
    sum_gradients,
    sum_scatter,
)
from comity.mlx._replace import replace
from comity.mlx._sharding import shard_inplace


def __getattr__(name: str) -> Any:
    if name == "mx":
        import mlx.core

        replace()
        return mlx.core
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AllToShardedLinear",
    "FullyShardedModule",
    "Group",
    "QuantizedAllToShardedLinear",
    "QuantizedShardedToAllLinear",
    "ShardedToAllLinear",
    "all_gather",
    "all_max",
    "all_min",
    "all_sum",
    "all_to_all",
    "average_gradients",
    "barrier",
    "broadcast",
    "clip_grad_norm_sharded",
    "fully_shard",
    "init",
    "is_available",
    "recv",
    "recv_like",
    "replace",
    "send",
    "shard_inplace",
    "shard_linear",
    "sum_gradients",
    "sum_scatter",
]
