"""Arrays of any other framework that has the CUDA array interface."""

import math
from typing import Any

from comity import _core
from comity.arrays.block import Block, Kind, unsupported
from comity.errors import MisuseError


class CudaArray(Kind):
    """Anything else with `__cuda_array_interface__`, which tells addresses, and the stream to order work on; results go to `out`."""

    name = "the CUDA array interface"

    def read(self, x: Any) -> Block:
        face = x.__cuda_array_interface__
        shape, address = tuple(face["shape"]), face["data"][0]
        kind, size = face["typestr"][1], int(face["typestr"][2:])
        name = {
            "b": "bool",
            "i": f"i{8 * size}",
            "u": f"u{8 * size}",
            "f": f"f{8 * size}",
            "c": f"c{8 * size}",
        }.get(kind)
        if name not in _core.DTYPES or face["typestr"][0] == ">" or face.get("mask") is not None:
            raise unsupported(self.name, face["typestr"])
        if face.get("strides") is not None and tuple(face["strides"]) != _dense(shape, size):
            raise MisuseError("an array of the CUDA array interface must be contiguous")
        # 0 is not allowed there, and None says that there is nothing to wait for: the default stream waits for all blocking ones.
        stream = face.get("stream") or 0
        return Block(address or 0, _core.DTYPES[name], shape, None, x, None, (None, stream))

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        raise MisuseError(
            "nobody knows how to make an array of this kind: give `out`, or pass it as one of torch or CuPy"
        )

    def write(self, out: Any) -> Block:
        if out.__cuda_array_interface__["data"][1]:
            raise MisuseError("`out` cannot be written")
        return self.read(out)


def _dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The strides of a contiguous array, in bytes."""
    return tuple(size * math.prod(shape[i + 1 :]) for i in range(len(shape)))
