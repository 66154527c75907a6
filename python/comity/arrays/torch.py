"""torch's tensors, in host memory and on CUDA devices."""

import math
from collections.abc import Callable
from typing import Any

from comity.arrays.block import Block, Kind, code_of, elsewhere
from comity.errors import MisuseError


class Torch(Kind):
    """`torch.Tensor` in host memory, or on a CUDA device in the order of the current stream."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, name)

    def over(self, alloc: Callable[[int], Any], shape: tuple[int, ...], dtype: Any) -> Any:
        code_of(self.name, dtype)
        if 0 in shape:
            return self.torch.zeros(shape, dtype=dtype)
        memory = alloc(math.prod(shape) * dtype.itemsize)
        return self.torch.frombuffer(memory, dtype=dtype).reshape(shape)

    def check(self, x: Any) -> None:
        """Refuse what no call reaches."""
        if x.device.type not in ("cpu", "cuda"):
            raise elsewhere("tensor", x.device)
        if x.layout != self.torch.strided:
            raise MisuseError(f"the tensor's layout is {x.layout}; only dense tensors can be passed")

    def block(self, t: Any, result: Callable[[], Any] | None = None) -> Block:
        """The memory of a contiguous tensor."""
        place = (t.device.index, self.torch.cuda.current_stream(t.device).cuda_stream) if t.is_cuda else None
        return Block(t.data_ptr(), code_of(self.name, t.dtype), tuple(t.shape), t.dtype, t, result, place)

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        return self.block(self.torch.empty(shape, dtype=like.dtype, device=like.keep.device))

    def read(self, x: Any) -> Block:
        self.check(x)
        return self.block(x.detach().resolve_conj().resolve_neg().contiguous())

    def new(self, shape: tuple[int, ...], dtype: Any) -> Block:
        return self.block(self.torch.empty(shape, dtype=dtype))

    def write(self, out: Any) -> Block:
        self.check(out)
        t = out.detach()
        if t.is_contiguous() and not t.is_conj() and not t.is_neg():
            return self.block(t, lambda: out)
        copy = self.torch.empty(tuple(out.shape), dtype=out.dtype, device=out.device)

        def copy_back() -> Any:
            t.copy_(copy)
            return out

        return self.block(copy, copy_back)
