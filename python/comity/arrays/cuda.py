"""Arrays on CUDA devices: CuPy's, those with the CUDA array interface, and those that are reached by way of another framework.

torch's tensors are in `_arrays.py`, wherever they are.
"""

import math
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from comity import _core
from comity._arrays import Block, Kind, Torch, code_of, kind_of, unsupported
from comity.errors import Misuse


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
            raise Misuse("an array of the CUDA array interface must be contiguous")
        # 0 is not allowed there, and None says that there is nothing to wait for: the default stream waits for all blocking ones.
        stream = face.get("stream") or 0
        return Block(address or 0, _core.DTYPES[name], shape, None, x, None, (None, stream))

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        raise Misuse(
            "nobody knows how to make an array of this kind: give `out`, or pass it as one of torch or CuPy"
        )

    def write(self, out: Any) -> Block:
        if out.__cuda_array_interface__["data"][1]:
            raise Misuse("`out` cannot be written")
        return self.read(out)


def _dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The strides of a contiguous array, in bytes."""
    return tuple(size * math.prod(shape[i + 1 :]) for i in range(len(shape)))


class Through:
    """CUDA arrays of frameworks that let no one write theirs, as those of one that does: torch, or else CuPy."""

    def __init__(self) -> None:
        self.kind = kind_of("torch" if "torch" in sys.modules or not _has("cupy") else "cupy")
        self.space = self.kind.torch if isinstance(self.kind, Torch) else self.kind.cupy

    def through(self, x: Any, back: Callable[[Any], Any] | None) -> Block:
        """What `x` holds; `back` makes its kind of the other's."""
        try:
            taken = self.space.from_dlpack(x)
        except Exception as e:  # each framework has classes of its own for this
            raise Misuse(
                f"the array is on a CUDA device and {self.kind.name} cannot take it over ({e}); copy it to host memory first"
            ) from e
        block = self.kind.read(taken)
        # A copy may have been made: that is what is read.
        block.keep = _Kept(x, block.keep, back)
        return block

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        block = self.kind.make(shape, _Like(like.dtype, like.keep.real))
        array, back = block.keep, like.keep.back
        block._result = (lambda: back(array)) if back else None
        return block


class _Like:
    """What `make` looks at."""

    def __init__(self, dtype: Any, keep: Any) -> None:
        self.dtype, self.keep = dtype, keep


class _Kept:
    """An array, and the other framework's view of it."""

    def __init__(self, x: Any, real: Any, back: Callable[[Any], Any] | None) -> None:
        self.x, self.real, self.back = x, real, back


def _has(module: str) -> bool:
    return module in sys.modules or find_spec(module) is not None


MAKERS: dict[str, type[Kind]] = {"cupy": CuPy, "cuda": CudaArray}
