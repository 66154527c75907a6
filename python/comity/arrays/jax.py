"""JAX's arrays: in host memory by way of NumPy, on CUDA devices by way of DLPack."""

import math
from typing import Any

from comity.arrays import kind_of
from comity.arrays.block import Block, Kind, elsewhere
from comity.arrays.through import on_device
from comity.errors import MisuseError


class Jax(Kind):
    """`jax.Array` in host memory; on a CUDA device by way of DLPack."""

    name = "JAX"

    def __init__(self) -> None:
        import jax
        import numpy as np

        self.jax, self.np, self.numpy = jax, np, kind_of("numpy")

    def dtype(self, name: str) -> Any:
        return self.numpy.dtype(name)

    def read(self, x: Any) -> Block:
        if isinstance(x, self.jax.core.Tracer):
            raise MisuseError(
                "calls communicate when they are made, so they cannot stand inside jax.jit, grad or vmap; "
                "make them between compiled functions"
            )
        for device in x.devices():
            if device.platform == "gpu" and hasattr(x, "__cuda_array_interface__"):
                return on_device().through(x, self.jax.dlpack.from_dlpack)
            if device.platform != "cpu":
                raise elsewhere("array", device)
        return self.numpy.read(self.np.asarray(x))

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        return super().make(shape, like) if like.place is None else on_device().make(shape, like)

    def new(self, shape: tuple[int, ...], dtype: Any) -> Block:
        # JAX takes over memory at a multiple of 64 bytes without a copy.
        dtype = self.np.dtype(dtype)
        raw = self.np.empty(math.prod(shape) * dtype.itemsize + 64, self.np.uint8)
        start = -raw.ctypes.data % 64
        a = raw[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
        return self.numpy.block(a, tuple(shape), lambda: self.jax.numpy.asarray(a))
