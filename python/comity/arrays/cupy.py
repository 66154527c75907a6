"""CuPy's arrays, on CUDA devices."""

from collections.abc import Callable
from typing import Any

from comity.arrays.block import Block, Kind, code_of


class CuPy(Kind):
    """`cupy.ndarray`, in the order of CuPy's current stream."""

    name = "CuPy"

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy

    def dtype(self, name: str) -> Any:
        return self.cupy.dtype(name)

    def block(self, a: Any, result: Callable[[], Any] | None = None) -> Block:
        """The memory of a contiguous array."""
        place = (a.device.id, self.cupy.cuda.get_current_stream().ptr)
        return Block(a.data.ptr, code_of(self.name, a.dtype), a.shape, a.dtype, a, result, place)

    def read(self, x: Any) -> Block:
        with x.device:
            return self.block(self.cupy.ascontiguousarray(x).reshape(x.shape))

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        with like.keep.device:
            return self.new(shape, like.dtype)

    def new(self, shape: tuple[int, ...], dtype: Any) -> Block:
        return self.block(self.cupy.empty(shape, dtype))

    def write(self, out: Any) -> Block:
        if out.flags.c_contiguous:
            return self.block(out)
        with out.device:
            a = self.cupy.empty(out.shape, out.dtype)

        def copy_back() -> Any:
            out[...] = a
            return out

        return self.block(a, copy_back)
