"""Arrays of every framework as memory for calls, and back: a file for each framework, imported when its first array comes.

No framework is imported before: who passes its array has imported it.
"""

import sys
from importlib import import_module
from typing import Any

from comity.arrays.block import LONG_NAMES, Block, Kind
from comity.errors import MisuseError

__all__ = ["LONG_NAMES", "Block", "Kind", "kind", "kind_of", "kind_of_dtype"]

# The files of this folder, and the class in each.
_KINDS = {
    "buffers": "Buffers",
    "cuda": "CudaArray",
    "cupy": "CuPy",
    "dlpack": "Dlpack",
    "jax": "Jax",
    "mlx": "Mlx",
    "numpy": "NumPy",
    "scalars": "Scalars",
    "torch": "Torch",
}
# The package that a type comes from, and the file for it.
_ROOTS = {"numpy": "numpy", "torch": "torch", "mlx": "mlx", "jax": "jax", "jaxlib": "jax", "cupy": "cupy"}
_kinds: dict[str, Kind] = {}
_by_type: dict[type, Kind] = {}


def kind_of(name: str) -> Kind:
    """The kind of the file with this name; its framework is imported, which raises `ImportError` where it is not installed."""
    kind = _kinds.get(name)
    if kind is None:
        module = import_module(f"comity.arrays.{name}")
        kind = _kinds[name] = getattr(module, _KINDS[name])()
    return kind


def kind(x: Any) -> Kind:
    """What kind of array `x` is; `MisuseError` where it is none."""
    t = type(x)
    found = _by_type.get(t)
    if found is None:
        found = _by_type[t] = kind_of(_name(t))
    return found


def _name(t: type) -> str:
    """The file for arrays of this type."""
    for base in t.__mro__:
        root = _ROOTS.get(base.__module__.partition(".")[0])
        # A framework's number or list is none of its arrays.
        if root and (hasattr(t, "dtype") or hasattr(t, "__array_interface__")):
            return root
    if issubclass(t, bool | int | float):
        return "scalars"
    if issubclass(t, bytes | bytearray | memoryview):
        return "buffers"
    if hasattr(t, "__dlpack__"):
        return "dlpack"
    if hasattr(t, "__cuda_array_interface__"):
        return "cuda"
    try:
        if hasattr(t, "__buffer__") or _has_buffer(t):
            return "buffers"
    except TypeError:
        pass
    raise MisuseError(
        f"{t.__module__}.{t.__qualname__} is no array: pass one of NumPy, torch, MLX or JAX, or anything with DLPack or the "
        "buffer protocol; for other objects there are broadcast_object, all_gather_object and scatter_object"
    )


def _has_buffer(t: type) -> bool:
    # Before Python 3.12 nothing but the attempt tells; these are the types one meets.
    return any(b.__module__ in ("_ctypes", "array", "mmap") for b in t.__mro__)


def kind_of_dtype(dtype: Any) -> Kind:
    """The framework whose type `dtype` is; NumPy's for names and Python's types."""
    root = _ROOTS.get(type(dtype).__module__.partition(".")[0])
    if root is None and isinstance(dtype, type):
        root = _ROOTS.get(dtype.__module__.partition(".")[0])
    if root is None and "jax" in sys.modules and type(dtype).__name__ == "_ScalarMeta":
        root = "jax"
    return kind_of(root or "numpy")
