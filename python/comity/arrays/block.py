"""Memory of one call, and what each framework's file in this folder does to make it."""

import math
from collections.abc import Callable
from typing import Any

from comity import _core
from comity.errors import MisuseError

#: The number of each of Comity's types, by its short name.
CODES = _core.DTYPES
# The names that NumPy, torch, MLX and JAX have in common.
_BY_NAME = {
    "bool": "bool",
    "bool_": "bool",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
}
_CODE_OF = {name: CODES[short] for name, short in _BY_NAME.items()}
BF16 = CODES["bf16"]
#: The names that frameworks have in common, by the number of the type.
LONG_NAMES = {code: name for name, code in _CODE_OF.items() if name != "bool_"}

#: A CUDA device (None: the group's), and a stream that orders the work; see `comity._core`.
Place = tuple[int | None, int]


class Block:
    """Memory of one call: what the core needs (`buffer`: address, number of the type, elements), what keeps it alive, and what becomes of
    it. `shape` is in elements of `dtype`, which is the framework's. `own`: nobody else has this memory, so a result may take its place."""

    __slots__ = ("_result", "buffer", "dtype", "keep", "own", "place", "shape")

    def __init__(
        self,
        address: int,
        code: int,
        shape: tuple[int, ...],
        dtype: Any,
        keep: Any,
        result: Callable[[], Any] | None = None,
        place: Place | None = None,
        own: bool = False,
    ) -> None:
        self.buffer = (address, code, math.prod(shape))
        self.shape = shape
        self.dtype = dtype
        self.keep = keep
        # None for host memory.
        self.place = place
        self.own = own
        self._result = result

    @property
    def code(self) -> int:
        """The number of the elements' type."""
        return self.buffer[1]

    @property
    def count(self) -> int:
        """How many elements."""
        return self.buffer[2]

    def result(self) -> Any:
        """The array, when the call has ended."""
        return self.keep if self._result is None else self._result()


def unsupported(kind: str, dtype: Any) -> MisuseError:
    """The error for a type that Comity does not have."""
    return MisuseError(f"{kind}'s {dtype} cannot be passed; Comity has {', '.join(CODES)}")


def elsewhere(what: str, device: Any) -> MisuseError:
    """The error for memory that the group does not reach."""
    return MisuseError(
        f"the {what} is on {device}, which this group does not reach; copy it to host memory first"
    )


def code_of(kind: str, dtype: Any) -> int:
    """The number of a framework's type."""
    try:
        return _CODE_OF[str(dtype).rpartition(".")[2]]
    except KeyError:
        raise unsupported(kind, dtype) from None


class Kind:
    """How one framework's arrays become memory and memory becomes its arrays. Each method raises `MisuseError` for what it cannot take."""

    #: The framework, in words of errors.
    name = ""

    def read(self, x: Any) -> Block:
        """The elements of `x` one after the other, the last axis fastest; a copy only where they do not lie so."""
        raise NotImplementedError

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        """A new array of this shape, of the type of `like` and in its place."""
        return self.new(shape, like.dtype)

    def new(self, shape: tuple[int, ...], dtype: Any) -> Block:
        """A new array of this shape and of this type of the framework, in host memory."""
        raise NotImplementedError

    def dtype(self, name: str) -> Any:
        """The framework's type with this name, of those that all have (`LONG_NAMES`)."""
        raise NotImplementedError

    def over(self, alloc: Callable[[int], Any], shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of zeros of this kind over memory from `alloc`, which takes a number of bytes."""
        raise MisuseError("empty makes arrays of NumPy and torch; pass one of their types")

    def write(self, out: Any) -> Block:
        """The memory of `out`, to be written; what is not contiguous is written by way of a copy when the call has ended."""
        raise MisuseError(f"{self.name} arrays cannot be changed, so they cannot be `out`")
