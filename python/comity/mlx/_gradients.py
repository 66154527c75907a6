"""Gradients of data-parallel and sharded training."""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map, tree_reduce, tree_unflatten

import comity
from comity import _core
from comity.arrays import kind_of
from comity.mlx._groups import Group, of


def average_gradients(
    gradients: Any,
    group: comity.Group | None = None,
    all_reduce_size: int = 32 * 1024**2,
    communication_type: mx.Dtype | None = None,
    communication_stream: Any = None,
    wire: str | None = None,
) -> Any:
    """The mean of each gradient over all ranks, which must have the same tree of them.

    Small gradients travel together: arrays are joined until they reach `all_reduce_size` bytes (0: each travels alone). While one batch
    travels, the next is computed.

    Args:
        gradients: A tree of arrays.
        group: Default: the group of the job.
        all_reduce_size: Bytes in a batch.
        communication_type: The type to send, such as ``mx.bfloat16``: half the bytes, and less precise. Default: each array's own.
        communication_stream: For the sake of MLX's signature.
        wire: The form in which elements cross a slow network: ``"bf16"``, ``"f16"`` or ``"int8"``. Sums stay float32, and each contribution
            is rounded once.
    """
    g = of(group)
    n = g.size()
    flat = tree_flatten(gradients)
    if n == 1 or not flat:
        return gradients
    if isinstance(communication_type, mx.Stream | mx.Device):
        # MLX's fourth argument.
        communication_type = None
    batches = _batches([x for _, x in flat], all_reduce_size, communication_type)
    mean = _core.Args(reduce="avg", wire=wire)
    pending = [
        (batch, *_start(g, [flat[i][1] for i in batch], communication_type, mean)) for batch in batches
    ]
    averaged = list(flat)
    for batch, request, joined in pending:
        request.wait()  # WAIT: a request, whose call has a deadline
        at = 0
        parts = joined.reshape(-1)
        for i in batch:
            name, x = flat[i]
            part = parts[at : at + x.size].reshape(x.shape)
            averaged[i] = (name, part.astype(x.dtype))
            at += x.size
    return tree_unflatten(averaged)


def _batches(arrays: list[mx.array], limit: int, send_as: mx.Dtype | None) -> list[list[int]]:
    """The numbers of the arrays that travel together: of one type, closed as soon as the limit is reached."""
    batches: list[list[int]] = []
    size, dtype = 0, None
    for i, x in enumerate(arrays):
        kind = send_as or x.dtype
        if not batches or limit <= 0 or size >= limit or kind != dtype:
            batches.append([])
            size, dtype = 0, kind
        batches[-1].append(i)
        size += x.size * kind.size
    return batches


def _start(
    g: Group, arrays: list[mx.array], send_as: mx.Dtype | None, mean: _core.Args
) -> tuple["_core.Request", mx.array]:
    """Begin to average some arrays; the request, and the array that holds them one after the other when it has ended."""
    mlx = kind_of("mlx")
    sent = [x if send_as is None else x.astype(send_as) for x in arrays]
    src = mlx.read(sent[0] if len(sent) == 1 else mx.concatenate([x.reshape(-1) for x in sent]))
    if src.own or len(sent) > 1 or sent[0].dtype != arrays[0].dtype:
        # Nobody else has this array, so the mean may take its place.
        request = g._raw.start("all_reduce", None, src.buffer, mean, hold=src)
        return request, src.keep[0]
    dst = mlx.make(src.shape, src)
    request = g._raw.start("all_reduce", src.buffer, dst.buffer, mean, hold=(src, dst))
    return request, dst.result()  # WAIT: none, the array is there


def clip_grad_norm_sharded(
    gradients: Any, max_norm: float, group: comity.Group | None = None
) -> tuple[Any, mx.array]:
    """Clip gradients of which each rank has a part, by the norm of all parts together; the clipped gradients and the norm."""
    g = of(group)
    local = tree_reduce(
        lambda total, x: total + x.astype(mx.float32).square().sum(), gradients, mx.array(0.0, mx.float32)
    )
    squared = local if g.size() == 1 else g.all_sum(local)
    norm = mx.sqrt(squared)
    factor = mx.minimum(max_norm / (norm + 1e-6), 1.0)
    return tree_map(lambda x: (x * factor).astype(x.dtype), gradients), norm
