"""Memory of CUDA devices, with a library that stands in for NCCL and the driver (`tools/softnccl`): `init("nccl")` and its calls."""

import ctypes
import math
import os
import time

import numpy as np
import pytest

import comity
from comity import _core

_driver = ctypes.CDLL(os.environ["COMITY_CUDA"])
_sizes = ctypes.c_size_t
for name, takes in {
    "cuMemAlloc_v2": [ctypes.c_void_p, _sizes],
    "cuStreamCreate": [ctypes.c_void_p, ctypes.c_uint],
    "cuEventCreate": [ctypes.c_void_p, ctypes.c_uint],
    "cuEventRecord": [_sizes, _sizes],
    "cuEventQuery": [_sizes],
    "cuEventDestroy_v2": [_sizes],
    "cuCtxSetCurrent": [_sizes],
    "cuMemcpyAsync": [ctypes.c_uint64, ctypes.c_uint64, _sizes, _sizes],
}.items():
    getattr(_driver, name).argtypes = takes

#: What the driver answers for an event that its stream has not come to.
_NOT_READY = 600


class Device:
    """A rank's device, and a stream of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        # As a framework does for each of its threads.
        assert _driver.cuCtxSetCurrent(number + 1) == 0
        self.stream = self.new_stream()

    def new_stream(self) -> int:
        stream = _sizes()
        assert _driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
        return stream.value

    def finish(self, stream: int | None = None) -> None:
        event = _sizes()
        assert _driver.cuEventCreate(ctypes.byref(event), 0) == 0
        assert _driver.cuEventRecord(event.value, self.stream if stream is None else stream) == 0
        until = time.monotonic() + 20
        while (code := _driver.cuEventQuery(event.value)) != 0:
            assert code == _NOT_READY and time.monotonic() < until
            time.sleep(0.0005)
        assert _driver.cuEventDestroy_v2(event.value) == 0

    def array(self, values: object, dtype: str = "f4") -> "Array":
        host = np.ascontiguousarray(values, dtype)
        address = ctypes.c_uint64()
        assert _driver.cuMemAlloc_v2(ctypes.byref(address), max(host.nbytes, 1)) == 0
        made = Array(self, address.value, host.shape, host.dtype)
        assert _driver.cuMemcpyAsync(made.address, host.ctypes.data, host.nbytes, self.stream) == 0
        return made


class Array:
    """Only the CUDA array interface."""

    def __init__(self, device: Device, address: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.device, self.address, self.shape, self.dtype = device, address, shape, dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3,
            "stream": self.device.stream,
        }  # fmt: skip

    def read(self) -> list:
        """When the stream has come past all that is on it."""
        self.device.finish()
        size = math.prod(self.shape) * self.dtype.itemsize
        return np.frombuffer(ctypes.string_at(self.address, size), self.dtype).reshape(self.shape).tolist()


def start() -> tuple[comity.Group, Device]:
    group = comity.init("nccl", timeout=60)
    assert comity.is_available("nccl") and group.device is not None
    return group, Device(group.device)


def check_every_operation(_: comity.Group) -> None:
    g, d = start()
    n, rank = g.size, g.rank
    total = float(sum(range(1, n + 1)))

    def result(*shape: int) -> Array:
        return d.array(np.full(shape, -1.0))

    x = d.array([rank + 1.0] * 3)
    out = result(3)
    assert g.all_sum(x, out=out) is out
    assert out.read() == [total] * 3 and x.read() == [rank + 1.0] * 3
    # Those that NCCL lacks, or means otherwise, go over the host.
    assert g.all_max(x, out=result(3)).read() == [float(n)] * 3
    assert g.all_reduce(d.array([rank, -rank], "i8"), "avg", out=d.array([0, 0], "i8")).read() == [
        (n - 1) // 2,
        -((n - 1) // 2),
    ]
    for root in range(n):
        assert g.broadcast(x, root, out=result(3)).read() == [root + 1.0] * 3
        got = g.reduce(x, root, out=result(3) if rank == root else None)
        assert rank != root or got.read() == [total] * 3
        got = g.gather(x, root, out=result(3 * n) if rank == root else None)
        assert rank != root or got.read() == [r + 1.0 for r in range(n) for _ in range(3)]
        wide = d.array([10.0 * root + r for r in range(n)])
        part = g.scatter(wide if rank == root else None, root, like=result(1), out=result(1))
        assert part.read() == [10.0 * root + rank]
    assert g.all_gather(x, out=result(3 * n)).read() == [r + 1.0 for r in range(n) for _ in range(3)]
    wide = d.array([10.0 * rank + r for r in range(n)])
    assert g.reduce_scatter(wide, out=result(1)).read() == [sum(10.0 * r + rank for r in range(n))]
    assert g.all_to_all(wide, out=result(n)).read() == [10.0 * r + rank for r in range(n)]
    counts = [r + 1 for r in range(n)]
    mine = d.array([float(rank)] * counts[rank])
    got = g.all_gather(mine, counts=counts, out=result(sum(counts)))
    assert got.read() == [float(r) for r in range(n) for _ in range(r + 1)]
    # In place.
    assert g.all_sum(x, out=x) is x and x.read() == [total] * 3
    g.barrier()


def check_pairs(_: comity.Group) -> None:
    g, d = start()
    n, rank = g.size, g.rank
    if n == 1:
        return
    right, left = (rank + 1) % n, (rank - 1) % n
    x = d.array([float(rank)] * 4)
    assert g.sendrecv(x, right, left, out=d.array([0.0] * 4)).read() == [float(left)] * 4
    if rank == 0:
        g.send(x, 1, tag=3)
        g.send(d.array([7.0]), 1, tag=4)
    elif rank == 1:
        assert g.recv_like(d.array([0.0]), 0, tag=4, out=d.array([0.0])).read() == [7.0]
        assert g.recv_like(x, 0, tag=3, out=d.array([1.0] * 4)).read() == [0.0] * 4


def check_calls_in_the_background(_: comity.Group) -> None:
    g, d = start()
    arrays = [d.array([float(i)] * 1000) for i in range(20)]
    pending = [g.all_sum(a, out=a, async_=True) for a in arrays]
    # Host memory, in its turn.
    assert g.all_sum(np.ones(3)).tolist() == [g.size] * 3
    for i, (p, a) in enumerate(zip(pending, arrays, strict=True)):
        assert p.wait() is a and a.read() == [float(i) * g.size] * 1000


def check_what_is_refused(everyone: comity.Group) -> None:
    g, d = start()
    a = d.array([1.0] * 3)
    with pytest.raises(comity.MisuseError, match='backend="nccl"'):
        everyone.all_sum(a, out=a)
    args = _core.Args(reduce="sum", place=(7, d.stream))
    with pytest.raises(comity.MisuseError, match="device 7, and this group's is device"):
        g._raw.run("all_reduce", None, (a.address, _core.DTYPES["f32"], 3), args)
    with pytest.raises(comity.MisuseError, match="host memory and the other"):
        g.all_sum(a, out=np.zeros(3, np.float32))
    with pytest.raises(comity.MisuseError, match="give `out`"):
        g.all_sum(a)
    assert g.all_sum(a, out=a).read() == [float(g.size)] * 3


def check_groups_of_some(_: comity.Group) -> None:
    g, d = start()
    half = g.split(g.rank % 2)
    assert half is not None and half.device == d.number
    a = d.array([1.0, 2.0])
    assert half.all_sum(a, out=a).read() == [half.size, 2.0 * half.size]
    half.close()


def check_calls_that_differ(_: comity.Group) -> None:
    everyone, d = start()
    if everyone.size == 1:
        return
    odd = everyone.rank == everyone.size - 1

    def make_one_differ() -> comity.Group:
        """A group in which NCCL carries out a call of two kinds, with a result that is wrong.

        A slow rank may be told within these calls: the others compare theirs by then.
        """
        g = everyone.split(0)
        assert g is not None
        a = d.array([1.0] * 3)
        g.all_sum(a, out=a)
        g.all_reduce(a, "prod" if odd else "sum", out=a)
        return g

    def make_many(g: comity.Group, x: object, out: object = None) -> None:
        for _ in range(200):
            g.all_sum(x, out=out)
            time.sleep(0.02)

    told = r"reduction.*all_reduce #2 .*all_reduce #2 "
    with pytest.raises(comity.MismatchError, match=told):
        make_one_differ().barrier()
    # Without a barrier before the calls are forgotten.
    a = d.array([1.0] * 3)
    with pytest.raises(comity.MismatchError, match=told):
        make_many(make_one_differ(), a, a)
    with pytest.raises(comity.MismatchError, match=told):
        make_one_differ().close()
    # It would wait for ever in this one: told soon, not at the limit.
    a = d.array([1.0] * (4 if odd else 3))
    begun = time.monotonic()

    def make_a_longer_one() -> None:
        g = everyone.split(0)
        assert g is not None
        g.all_sum(a, out=a)
        make_many(g, np.ones(1))

    with pytest.raises(comity.MismatchError, match=r"count.*all_reduce #1 .*all_reduce #1 "):
        make_a_longer_one()
    assert time.monotonic() - begun < 40
