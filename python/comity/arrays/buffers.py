"""Objects with Python's buffer protocol."""

import array
import math
import sys
from typing import Any

from comity import _core
from comity.arrays.block import CODES, Block, Kind, unsupported
from comity.errors import MisuseError

# Marks of the byte order that this machine has.
_NATIVE = "@=" + ("<" if sys.byteorder == "little" else ">")
# What struct and array call the types that have one size everywhere.
_FORMATS = {"?": "bool", "e": "f16", "f": "f32", "d": "f64", "Zf": "c64", "F": "c64", "c": "u8"}


class Buffers(Kind):
    """`bytes`, `bytearray`, `memoryview`, `array.array` and what else has the buffer protocol."""

    name = "the buffer protocol"

    def read(self, x: Any) -> Block:
        memory = _core.Memory(x)
        if not memory.contiguous:
            like, code, shape = self.like(x, memory), self.code(memory), memory.shape
            x = memoryview(x).tobytes()
            memory = _core.Memory(x)
            return Block(memory.address, code, shape, like, (x, memory))
        return Block(memory.address, self.code(memory), memory.shape, self.like(x, memory), (x, memory))

    @staticmethod
    def code(memory: Any) -> int:
        """The number of the type that the object says it has."""
        f = memory.format.lstrip(_NATIVE) or "B"
        if f in _FORMATS:
            return CODES[_FORMATS[f]]
        if f in "bhilqn":
            return CODES[f"i{8 * memory.itemsize}"]
        if f in "BHILQN":
            return CODES[f"u{8 * memory.itemsize}"]
        raise unsupported("the buffer protocol", f"format {memory.format!r}")

    @staticmethod
    def like(x: Any, memory: Any) -> Any:
        """What makes an object like `x` of bytes and a shape."""
        if isinstance(x, bytes):
            return lambda b, _shape: bytes(b)
        if isinstance(x, array.array):
            return lambda b, _shape: array.array(x.typecode, bytes(b))
        if isinstance(x, bytearray):
            return lambda b, _shape: b
        format = memory.format.lstrip(_NATIVE) or "B"
        return lambda b, shape: memoryview(b).cast(format, shape)

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        b = bytearray(math.prod(shape) * _core.SIZES[like.code])
        memory = _core.Memory(b)

        def result() -> Any:
            return like.dtype(b, shape)

        return Block(memory.address, like.code, shape, like.dtype, (b, memory), result)

    def write(self, out: Any) -> Block:
        memory = _core.Memory(out)
        if memory.readonly or not memory.contiguous:
            raise MisuseError("`out` cannot be written, or is not contiguous")
        return Block(memory.address, self.code(memory), memory.shape, None, (out, memory), lambda: out)
