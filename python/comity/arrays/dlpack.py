"""Arrays of any other framework that has DLPack."""

from typing import Any

from comity.arrays import kind_of
from comity.arrays.block import Block, Kind, elsewhere
from comity.arrays.through import on_device

# DLPack's numbers for devices.
_CPU, _CUDA = 1, 2


class Dlpack(Kind):
    """Any other array with DLPack; results are of its kind where it follows the array API standard, else NumPy's."""

    name = "DLPack"

    def __init__(self) -> None:
        import numpy as np

        self.np, self.numpy = np, kind_of("numpy")
        self.spaces: dict[int, Any] = {}

    def read(self, x: Any) -> Block:
        device, number = x.__dlpack_device__()
        if device == _CUDA:
            space = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
            return on_device().through(x, space and space.from_dlpack)
        if device != _CPU:
            raise elsewhere("array", f"device {number} of DLPack's type {int(device)}")
        block = self.numpy.read(self.np.from_dlpack(x))
        block.keep = (x, block.keep)
        if hasattr(x, "__array_namespace__"):
            block.dtype = (block.dtype, x.__array_namespace__())
        return block

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        if like.place is not None:
            return on_device().make(shape, like)
        dtype, space = like.dtype if isinstance(like.dtype, tuple) else (like.dtype, None)
        block = self.numpy.new(shape, dtype)
        a = block.keep
        return self.numpy.block(a, shape, None if space is None else lambda: space.from_dlpack(a))
