"""Communication hooks for DistributedDataParallel: `model.register_comm_hook(state, hook)`.

`fp16` and `bf16` halve what goes over the wire, `int8` quarters it, `top_k` sends the largest gradients and keeps the others for
the next step. They work with any backend; `state` is None, or `TopKState(ratio)`. On Comity, the first three round gradients in host memory
once and their average once more.
"""

# Torch reads these functions' annotations, which must be types and not text: no `from __future__ import annotations`.
from typing import Any

import torch
import torch.distributed as dist

from .calls import Calls
from .compression import Codec, Half, Int8, TopK


def _on_wire(
    form: Codec, group: dist.ProcessGroup, grads: torch.Tensor
) -> torch.futures.Future[torch.Tensor] | None:
    """The average on a wire; None for groups and tensors without."""
    if grads.is_cuda or not form.takes(grads, "avg"):
        return None
    backend = group._get_backend(grads.device)
    if not isinstance(backend, Calls):
        return None
    work = form.all_reduce(backend, grads, "avg", dist.AllreduceOptions(), [grads])
    return work.get_future().then(lambda _: grads)


def _half(state: Any, bucket: dist.GradBucket, form: Half) -> torch.futures.Future[torch.Tensor]:
    group = state if isinstance(state, dist.ProcessGroup) else dist.group.WORLD
    grads, dtype = bucket.buffer(), form.dtype
    if (future := _on_wire(form, group, grads)) is not None:
        return future
    small = grads.div(group.size()).to(dtype)
    future = dist.all_reduce(small, group=group, async_op=True).get_future()
    return future.then(lambda _: grads.copy_(small))


_FP16, _BF16, _INT8 = Half(torch.float16), Half(torch.bfloat16), Int8()


def fp16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return _half(state, bucket, _FP16)


def bf16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return _half(state, bucket, _BF16)


def int8(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    group = state if isinstance(state, dist.ProcessGroup) else dist.group.WORLD
    if (future := _on_wire(_INT8, group, bucket.buffer())) is not None:
        return future
    return _gathered(_INT8, _INT8.pack(bucket.buffer().float(), None), group, bucket)


class TopKState:
    """The share of gradients that `top_k` sends, and what it has not sent yet."""

    def __init__(self, ratio: float = 0.01, group: dist.ProcessGroup | None = None) -> None:
        self.codec = TopK(ratio)
        self.group = group


def top_k(state: TopKState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    group = state.group or dist.group.WORLD
    # Buckets are laid out anew once, after the first step: their lengths tell them apart as well.
    key = (bucket.index(), bucket.buffer().numel())
    return _gathered(state.codec, state.codec.pack(bucket.buffer().float(), key), group, bucket)


def _gathered(
    codec: Any, mine: torch.Tensor, group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    size, grads = group.size(), bucket.buffer()
    parts = torch.empty(size * mine.numel(), dtype=torch.uint8, device=mine.device)
    future = dist.all_gather_into_tensor(parts, mine, group=group, async_op=True).get_future()

    def decode(_: Any) -> torch.Tensor:
        total = torch.zeros_like(grads, dtype=torch.float32)
        for part in parts.view(size, -1):
            codec.add(total, part)
        return grads.copy_(total.div_(size))

    return future.then(decode)
