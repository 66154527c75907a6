"""NumPy's arrays."""

import math
from collections.abc import Callable
from typing import Any

from comity import _core
from comity.arrays.block import BF16, LONG_NAMES, Block, Kind, code_of
from comity.errors import MisuseError


class NumPy(Kind):
    """`numpy.ndarray` and NumPy's scalars, also of the types of ml_dtypes."""

    name = "NumPy"

    def __init__(self) -> None:
        import numpy as np

        self.np = np
        self.codes: dict[Any, int] = {}
        # The core takes plain arrays of these types by itself; those of ml_dtypes do not lend their memory.
        plain = [(np.dtype(name), code) for code, name in LONG_NAMES.items() if code != BF16]
        _core.know_numpy(np.ndarray, np.empty_like, plain)

    def code(self, dtype: Any) -> int:
        """The number of a type."""
        code = self.codes.get(dtype)
        if code is None:
            if not dtype.isnative:
                raise MisuseError(
                    f"NumPy's {dtype.str} has the byte order of another machine; convert it first"
                )
            code = self.codes[dtype] = code_of(self.name, dtype)
        return code

    def dtype(self, name: str) -> Any:
        if name == "bfloat16":
            import ml_dtypes

            return self.np.dtype(ml_dtypes.bfloat16)
        return self.np.dtype(name)

    def over(self, alloc: Callable[[int], Any], shape: tuple[int, ...], dtype: Any) -> Any:
        dtype = self.dtype(dtype) if isinstance(dtype, str) else self.np.dtype(dtype)
        self.code(dtype)
        return self.np.ndarray(shape, dtype, alloc(math.prod(shape) * dtype.itemsize))

    def block(self, a: Any, shape: tuple[int, ...], result: Callable[[], Any] | None = None) -> Block:
        """The memory of a contiguous array."""
        code = self.code(a.dtype)
        return Block(self.address(a, code), code, shape, a.dtype, a, result)

    @staticmethod
    def address(a: Any, code: int) -> int:
        """Where a contiguous array begins."""
        # The buffer protocol is several times as fast, but has no scalars and no types of ml_dtypes.
        if a.ndim == 0 or code == BF16:
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
            raise MisuseError("`out` cannot be written")
        if out.flags.c_contiguous:
            return self.block(out, out.shape)
        a = self.np.empty(out.shape, out.dtype)

        def copy_back() -> Any:
            self.np.copyto(out, a)
            return out

        return self.block(a, out.shape, copy_back)
