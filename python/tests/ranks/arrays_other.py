"""Numbers, buffers and arrays of other libraries; the caller's kind comes back."""

import array
import ctypes
import mmap

import numpy as np
import pytest

import comity


def check_numbers(g: comity.Group) -> None:
    n = g.size
    assert g.all_sum(1) == n
    assert isinstance(g.all_sum(1), int)
    assert g.all_sum(0.5) == n / 2
    assert g.all_max(float(g.rank)) == n - 1
    assert g.all_min(-g.rank) == 1 - n
    assert g.all_reduce(g.rank == 0, "or") is True
    assert g.all_gather(g.rank * 1.5) == [r * 1.5 for r in range(n)]
    assert g.broadcast(g.rank, n - 1) == n - 1
    with pytest.raises(comity.MisuseError, match="64 bits"):
        g.all_sum(1 << 70)


def check_buffers(g: comity.Group) -> None:
    n, r = g.size, g.rank
    assert g.all_sum(b"\1\2") == bytes([n, 2 * n])
    got = g.all_sum(bytearray(b"\1\2"))
    assert isinstance(got, bytearray)
    assert got == bytearray([n, 2 * n])
    got = g.all_gather(array.array("d", [r, r + 0.5]))
    assert got == array.array("d", [s + h for s in range(n) for h in (0, 0.5)])
    view = memoryview(array.array("i", range(6))).cast("B").cast("i", (2, 3))
    got = g.all_sum(view)
    assert got.shape == (2, 3)
    assert got.tolist() == [[0, n, 2 * n], [3 * n, 4 * n, 5 * n]]
    assert g.all_sum(memoryview(b"\1\2\3\4")[::2]).tolist() == [n, 3 * n]
    numbers = (ctypes.c_int64 * 3)(1, 2, r)
    assert g.all_max(numbers, out=numbers) is numbers
    assert list(numbers) == [1, 2, n - 1]
    with mmap.mmap(-1, 16) as shared:
        shared[:3] = b"\1\1\1"
        g.all_sum(shared, out=shared)
        assert shared[:4] == bytes([n, n, n, 0])
    with pytest.raises(comity.MisuseError, match="cannot be written"):
        g.all_sum(b"\1", out=b"\1")
    with pytest.raises(comity.MisuseError, match="format"):
        g.all_sum((ctypes.c_longdouble * 2)())


class Standard:
    """An array of a library that follows the array API standard, and which Comity does not know."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __dlpack__(self, **options: object) -> object:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()

    def __array_namespace__(self) -> type:
        return Namespace


class Namespace:
    @staticmethod
    def from_dlpack(x: np.ndarray) -> Standard:
        return Standard(np.from_dlpack(x))


class OnGpu(Standard):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def check_dlpack(g: comity.Group) -> None:
    got = g.all_sum(Standard(np.arange(6, dtype=np.float32).reshape(2, 3)))
    assert isinstance(got, Standard)
    np.testing.assert_array_equal(got.values, np.arange(6).reshape(2, 3) * g.size)
    with pytest.raises(comity.MisuseError, match="host memory"):
        g.all_sum(OnGpu(np.ones(2)))
