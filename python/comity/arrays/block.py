"""Arrays of every framework as memory for calls, and back.

No framework is imported here: who passes a framework's array has imported it.
"""

import array
import math
import struct
import sys
from collections.abc import Callable
from typing import Any

from comity import _core
from comity.errors import Misuse

_CODES = _core.DTYPES
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
_CODE_OF = {name: _CODES[short] for name, short in _BY_NAME.items()}
_BF16 = _CODES["bf16"]
# By the number of the type.
LONG_NAMES = {code: name for name, code in _CODE_OF.items() if name != "bool_"}


#: A CUDA device (None: the group's), and a stream that orders the work; see `comity._core`.
Place = tuple[int | None, int]


class Block:
    """Memory of one call: what the core needs, what keeps it alive, and what becomes of it."""

    __slots__ = ("_result", "buffer", "dtype", "keep", "place", "shape")

    def __init__(
        self,
        address: int,
        code: int,
        shape: tuple[int, ...],
        dtype: Any,
        keep: Any,
        result: Callable[[], Any] | None = None,
        place: Place | None = None,
    ) -> None:
        self.buffer = (address, code, math.prod(shape))
        self.shape = shape
        self.dtype = dtype
        self.keep = keep
        # None for host memory.
        self.place = place
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


def unsupported(kind: str, dtype: Any) -> Misuse:
    """The error for a type that Comity does not have."""
    return Misuse(f"{kind}'s {dtype} cannot be passed; Comity has {', '.join(_CODES)}")


def elsewhere(what: str, device: Any) -> Misuse:
    """The error for memory that the group does not reach."""
    return Misuse(f"the {what} is on {device}, which this group does not reach; copy it to host memory first")


def code_of(kind: str, dtype: Any) -> int:
    """The number of a framework's type."""
    try:
        return _CODE_OF[str(dtype).rpartition(".")[2]]
    except KeyError:
        raise unsupported(kind, dtype) from None


class Kind:
    """How one framework's arrays become memory and memory becomes its arrays."""

    name = ""
    # Whether an array can be changed after it was made.
    mutable = True

    def read(self, x: Any) -> Block:
        """The elements of `x` one after the other; a copy only where they are not."""
        raise NotImplementedError

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        """A new array of this shape, and of the type of `like`."""
        return self.new(shape, like.dtype)

    def new(self, shape: tuple[int, ...], dtype: Any) -> Block:
        """A new array of this shape and type."""
        raise NotImplementedError

    def dtype(self, name: str) -> Any:
        """The framework's type with this name, of those that all have."""
        raise NotImplementedError

    def write(self, out: Any) -> Block:
        """The memory of `out`, to be written."""
        raise Misuse(f"{self.name} arrays cannot be changed, so they cannot be `out`")


class NumPy(Kind):
    """`numpy.ndarray` and NumPy's scalars, also of the types of ml_dtypes."""

    name = "NumPy"

    def __init__(self) -> None:
        import numpy as np

        self.np = np
        self.codes: dict[Any, int] = {}

    def code(self, dtype: Any) -> int:
        """The number of a type."""
        code = self.codes.get(dtype)
        if code is None:
            if not dtype.isnative:
                raise Misuse(f"NumPy's {dtype.str} has the byte order of another machine; convert it first")
            code = self.codes[dtype] = code_of(self.name, dtype)
        return code

    def dtype(self, name: str) -> Any:
        if name == "bfloat16":
            import ml_dtypes

            return self.np.dtype(ml_dtypes.bfloat16)
        return self.np.dtype(name)

    def block(self, a: Any, shape: tuple[int, ...], result: Callable[[], Any] | None = None) -> Block:
        """The memory of a contiguous array."""
        code = self.code(a.dtype)
        return Block(self.address(a, code), code, shape, a.dtype, a, result)

    @staticmethod
    def address(a: Any, code: int) -> int:
        """Where a contiguous array begins."""
        # The buffer protocol is several times as fast, but has no scalars and no types of ml_dtypes.
        if a.ndim == 0 or code == _BF16:
            return a.ctypes.data
        return _core.Memory(a).address

    def read(self, x: Any) -> Block:
        code = self.code(x.dtype)
        a = x if isinstance(x, self.np.ndarray) else self.np.asarray(x)
        if not a.flags.c_contiguous:
            a = self.np.ascontiguousarray(a)
        return Block(self.address(a, code), code, x.shape, x.dtype, a)

    def new(self, shape: tuple[int, ...], dtype: Any) -> Block:
        return self.block(self.np.empty(shape, dtype), shape)

    def write(self, out: Any) -> Block:
        if not isinstance(out, self.np.ndarray) or not out.flags.writeable:
            raise Misuse("`out` cannot be written")
        if out.flags.c_contiguous:
            return self.block(out, out.shape)
        a = self.np.empty(out.shape, out.dtype)

        def copy_back() -> Any:
            self.np.copyto(out, a)
            return out

        return self.block(a, out.shape, copy_back)


class Torch(Kind):
    """`torch.Tensor` in host memory, or on a CUDA device in the order of the current stream."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, name)

    def check(self, x: Any) -> None:
        """Refuse what no call reaches."""
        if x.device.type not in ("cpu", "cuda"):
            raise elsewhere("tensor", x.device)
        if x.layout != self.torch.strided:
            raise Misuse(f"the tensor's layout is {x.layout}; only dense tensors can be passed")

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


class Mlx(Kind):
    """`mlx.core.array`."""

    name = "MLX"
    mutable = False

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
            raise Misuse(
                "calls on MLX arrays communicate when they are made, so they cannot stand inside mx.compile or mx.vmap; "
                "make them between compiled functions"
            ) from e
        memory = _core.Memory(x)
        if not memory.contiguous:
            x = mx.contiguous(x)
            mx.eval(x)
            memory = _core.Memory(x)
        return Block(memory.address, code, shape, x.dtype, (x, memory))

    def new(self, shape: tuple[int, ...], dtype: Any) -> Block:
        mx = self.mx
        code = code_of(self.name, dtype)
        # Nobody has seen this array yet, so it may still be written.
        a = mx.zeros(shape or 1, dtype, stream=mx.cpu)
        mx.eval(a)
        memory = _core.Memory(a)
        if memory.readonly or not memory.contiguous:
            raise Misuse("this version of MLX does not let a new array be written")
        result = (lambda: a) if shape else (lambda: a.reshape(()))
        return Block(memory.address, code, tuple(shape), dtype, (a, memory), result)


class Jax(Kind):
    """`jax.Array` in host memory; on a CUDA device by way of DLPack."""

    name = "JAX"
    mutable = False

    def __init__(self) -> None:
        import jax
        import numpy as np

        self.jax, self.np, self.numpy = jax, np, kind_of("numpy")

    def dtype(self, name: str) -> Any:
        return self.numpy.dtype(name)

    def read(self, x: Any) -> Block:
        if isinstance(x, self.jax.core.Tracer):
            raise Misuse(
                "calls communicate when they are made, so they cannot stand inside jax.jit, grad or vmap; "
                "make them between compiled functions"
            )
        for device in x.devices():
            if device.platform == "gpu" and hasattr(x, "__cuda_array_interface__"):
                return _on_device().through(x, self.jax.dlpack.from_dlpack)
            if device.platform != "cpu":
                raise elsewhere("array", device)
        return self.numpy.read(self.np.asarray(x))

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        return super().make(shape, like) if like.place is None else _on_device().make(shape, like)

    def new(self, shape: tuple[int, ...], dtype: Any) -> Block:
        # JAX takes over memory at a multiple of 64 bytes without a copy.
        dtype = self.np.dtype(dtype)
        raw = self.np.empty(math.prod(shape) * dtype.itemsize + 64, self.np.uint8)
        start = -raw.ctypes.data % 64
        a = raw[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
        return self.numpy.block(a, tuple(shape), lambda: self.jax.numpy.asarray(a))


class Dlpack(Kind):
    """Any other array with DLPack; results are of its kind where it follows the array API standard, else NumPy's."""

    name = "DLPack"
    mutable = False

    def __init__(self) -> None:
        import numpy as np

        self.np, self.numpy = np, kind_of("numpy")
        self.spaces: dict[int, Any] = {}

    def read(self, x: Any) -> Block:
        device, number = x.__dlpack_device__()
        if device == _CUDA:
            space = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
            return _on_device().through(x, space and space.from_dlpack)
        if device != 1:
            raise elsewhere("array", f"device {number} of DLPack's type {int(device)}")
        block = self.numpy.read(self.np.from_dlpack(x))
        block.keep = (x, block.keep)
        if hasattr(x, "__array_namespace__"):
            block.dtype = (block.dtype, x.__array_namespace__())
        return block

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        if like.place is not None:
            return _on_device().make(shape, like)
        dtype, space = like.dtype if isinstance(like.dtype, tuple) else (like.dtype, None)
        block = self.numpy.new(shape, dtype)
        a = block.keep
        return self.numpy.block(a, shape, None if space is None else lambda: space.from_dlpack(a))


# DLPack's number for CUDA.
_CUDA = 2


def _on_device() -> Any:
    """What makes memory of CUDA arrays that their framework lets no one write."""
    from comity._arrays_cuda import Through

    try:
        return Through()
    except ImportError as e:
        raise Misuse(
            "the array is on a CUDA device, and neither torch nor CuPy is installed to take it over; copy it to host memory first"
        ) from e


# Marks of the byte order that this machine has.
_NATIVE = "@=" + ("<" if sys.byteorder == "little" else ">")
# What struct and array call the types that have one size everywhere.
_FORMATS = {"?": "bool", "e": "f16", "f": "f32", "d": "f64", "Zf": "c64", "F": "c64", "c": "u8"}


class Bytes(Kind):
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
            return _CODES[_FORMATS[f]]
        if f in "bhilqn":
            return _CODES[f"i{8 * memory.itemsize}"]
        if f in "BHILQN":
            return _CODES[f"u{8 * memory.itemsize}"]
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
            raise Misuse("`out` cannot be written, or is not contiguous")
        return Block(memory.address, self.code(memory), memory.shape, None, (out, memory), lambda: out)


_NUMBERS = {bool: ("bool", "?"), int: ("i64", "q"), float: ("f64", "d")}


class Scalar(Kind):
    """Python's own numbers: bool, int (as i64) and float (as f64)."""

    name = "Python"
    mutable = False

    def read(self, x: Any) -> Block:
        for number, (name, format) in _NUMBERS.items():
            if isinstance(x, number):
                try:
                    b = bytearray(struct.pack(format, x))
                except struct.error:
                    raise Misuse(f"{x} does not fit into 64 bits") from None
                memory = _core.Memory(b)
                return Block(memory.address, _CODES[name], (), format, (b, memory))
        raise unsupported("Python", type(x).__name__)

    def make(self, shape: tuple[int, ...], like: Block) -> Block:
        n = math.prod(shape)
        b = bytearray(n * _core.SIZES[like.code])
        memory = _core.Memory(b)

        def result() -> Any:
            values = struct.unpack(f"{n}{like.dtype}", b)
            return list(values) if shape else values[0]

        return Block(memory.address, like.code, shape, like.dtype, (b, memory), result)


_MAKERS: dict[str, type[Kind]] = {
    "numpy": NumPy,
    "torch": Torch,
    "mlx": Mlx,
    "jax": Jax,
    "dlpack": Dlpack,
    "bytes": Bytes,
    "scalar": Scalar,
}
_ROOTS = {"numpy": "numpy", "torch": "torch", "mlx": "mlx", "jax": "jax", "jaxlib": "jax", "cupy": "cupy"}
_kinds: dict[str, Kind] = {}
_by_type: dict[type, Kind] = {}


def kind_of(name: str) -> Kind:
    """The kind with this name; its framework is imported."""
    kind = _kinds.get(name)
    if kind is None:
        maker = _MAKERS.get(name)
        if maker is None:
            from comity._arrays_cuda import MAKERS

            maker = MAKERS[name]
        kind = _kinds[name] = maker()
    return kind


def kind(x: Any) -> Kind:
    """What kind of array `x` is."""
    t = type(x)
    found = _by_type.get(t)
    if found is None:
        found = _by_type[t] = kind_of(_name(t))
    return found


def _name(t: type) -> str:
    for base in t.__mro__:
        root = _ROOTS.get(base.__module__.partition(".")[0])
        # A framework's number or list is none of its arrays.
        if root and (hasattr(t, "dtype") or hasattr(t, "__array_interface__")):
            return root
    if issubclass(t, bool | int | float):
        return "scalar"
    if issubclass(t, bytes | bytearray | memoryview | array.array):
        return "bytes"
    if hasattr(t, "__dlpack__"):
        return "dlpack"
    if hasattr(t, "__cuda_array_interface__"):
        return "cuda"
    try:
        if hasattr(t, "__buffer__") or _has_buffer(t):
            return "bytes"
    except TypeError:
        pass
    raise Misuse(
        f"{t.__module__}.{t.__qualname__} is no array: pass one of NumPy, torch, MLX or JAX, or anything with DLPack or the "
        "buffer protocol; for other objects there are broadcast_object, all_gather_object and scatter_object"
    )


def _has_buffer(t: type) -> bool:
    # Before Python 3.12 nothing but the attempt tells; ctypes and mmap are the types one meets.
    return any(b.__module__ in ("_ctypes", "mmap") for b in t.__mro__)


def kind_of_dtype(dtype: Any) -> Kind:
    """The framework whose type `dtype` is; NumPy's for names and Python's types."""
    root = _ROOTS.get(type(dtype).__module__.partition(".")[0])
    if root is None and isinstance(dtype, type):
        root = _ROOTS.get(dtype.__module__.partition(".")[0])
    if root is None and "jax" in sys.modules and type(dtype).__name__ == "_ScalarMeta":
        root = "jax"
    return kind_of(root or "numpy")
