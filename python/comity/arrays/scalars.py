"""Python's own numbers."""

import math
import struct
from typing import Any

from comity import _core
from comity.arrays.block import CODES, Block, Kind, unsupported
from comity.errors import MisuseError

_NUMBERS = {bool: ("bool", "?"), int: ("i64", "q"), float: ("f64", "d")}


class Scalars(Kind):
    """Python's own numbers: bool, int (as i64) and float (as f64)."""

    name = "Python"

    def read(self, x: Any) -> Block:
        for number, (name, format) in _NUMBERS.items():
            if isinstance(x, number):
                try:
                    b = bytearray(struct.pack(format, x))
                except struct.error:
                    raise MisuseError(f"{x} does not fit into 64 bits") from None
                memory = _core.Memory(b)
                return Block(memory.address, CODES[name], (), format, (b, memory))
        raise unsupported("Python", type(x).__name__)

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        n = math.prod(shape)
        b = bytearray(n * _core.SIZES[like.code])
        memory = _core.Memory(b)

        def result() -> Any:
            values = struct.unpack(f"{n}{like.dtype}", b)
            return list(values) if shape else values[0]

        return Block(memory.address, like.code, shape, like.dtype, (b, memory), result)
