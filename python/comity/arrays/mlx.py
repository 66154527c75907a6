"""MLX's arrays, whose memory the processor and the GPU share."""

from typing import Any

from comity import _core
from comity.arrays.block import Block, Kind, code_of
from comity.errors import MisuseError


class Mlx(Kind):
    """`mlx.core.array`."""

    name = "MLX"

    def __init__(self) -> None:
        import mlx.core as mx

        self.mx = mx

    def dtype(self, name: str) -> Any:
        return getattr(self.mx, "bool_" if name == "bool" else name)

    def read(self, x: Any) -> Block:
        mx = self.mx
        code, shape = code_of(self.name, x.dtype), tuple(x.shape)
        if not shape:
            # MLX gives away no memory of scalars.
            x = x.reshape(1)
        try:
            mx.eval(x)
        except ValueError as e:
            if "transformation" not in str(e):
                raise
            raise MisuseError(
                "calls on MLX arrays communicate when they are made, so they cannot stand inside mx.compile or mx.vmap; "
                "make them between compiled functions"
            ) from e
        memory = _core.Memory(x)
        if memory.contiguous:
            return Block(memory.address, code, shape, x.dtype, (x, memory))
        copy = mx.contiguous(x)
        mx.eval(copy)
        memory = _core.Memory(copy)
        own = not memory.readonly
        return Block(memory.address, code, shape, x.dtype, (copy, memory), lambda: copy, own=own)

    def new(self, shape: tuple[int, ...], dtype: Any) -> Block:
        mx = self.mx
        code = code_of(self.name, dtype)
        # Nobody has seen this array yet, so it may still be written.
        a = mx.zeros(shape or 1, dtype, stream=mx.cpu)
        mx.eval(a)
        memory = _core.Memory(a)
        if memory.readonly or not memory.contiguous:
            raise MisuseError("this version of MLX does not let a new array be written")
        result = (lambda: a) if shape else (lambda: a.reshape(()))
        return Block(memory.address, code, tuple(shape), dtype, (a, memory), result)
