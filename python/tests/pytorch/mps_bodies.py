"""What ranks do in `test_mps.py`: calls on a stand-in for tensors of an Apple GPU, whose memory a stand-in for torch's part shows the host.

What torch does on a Mac is not tested by this: it is what the backend asks of it, and in which order.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from comity.torch import mps, registration
from comity.torch.calls import Call

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)
#: What happened, in order.
LOG: list[str] = []
#: The memory of stand-ins, by their storage.
_MEMORY: dict[int, torch.Tensor] = {}


class OnGpu(torch.Tensor):
    """Says that it is on an Apple GPU, and has no memory of its own: any use of it but being passed on fails."""

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> OnGpu:
        t = torch.Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype, device="mps"
        )  # fmt: skip
        t.host = host
        _MEMORY[t.untyped_storage()._cdata] = host
        return t

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # To the kernels for Apple GPUs.
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return func(*args, **(kwargs or {}))


def alias(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """As torch's: the same bytes. When nobody has them any more, that is a release."""
    of = _MEMORY[storage._cdata].untyped_storage()
    held = (ctypes.c_char * of.nbytes()).from_address(of.data_ptr())
    weakref.finalize(held, LOG.append, "release")
    LOG.append("alias")
    return torch.frombuffer(held, dtype=torch.uint8).untyped_storage()


class Event:
    def record(self) -> None:
        LOG.append("record")

    def synchronize(self) -> None:
        assert LOG[-1] == "record", LOG
        LOG.append("fence")


@contextlib.contextmanager
def stand_in(store: dist.Store, rank: int, size: int) -> Iterator[Any]:
    """A group for tensors of host memory and of the stand-in."""
    _MEMORY.clear()
    with (
        mock.patch.object(torch.mps, "_host_alias_storage", alias, create=True),
        mock.patch.object(torch.mps, "Event", Event, create=True),
    ):
        with (
            mock.patch.object(torch.backends.mps, "is_available", return_value=True),
            mock.patch.object(registration, "DEVICES", ["cpu", "mps"]),
        ):
            dist.init_process_group("cpu:comity,mps:comity", store=store, rank=rank, world_size=size)
        LOG.clear()
        try:
            yield dist.group.WORLD._get_backend(torch.device("cpu"))
        finally:
            dist.destroy_process_group()
            mps._library._destroy()
            mps._library = None


def released() -> list[str]:
    """What happened, when all memory that was shown is released: of calls in the background, by the thread that made them."""
    until = time.monotonic() + 30
    while LOG.count("release") < LOG.count("alias") and time.monotonic() < until:
        time.sleep(0.01)
    seen = LOG.copy()
    LOG.clear()
    return seen


def order(rank: int, size: int, store: dist.Store) -> None:
    """The GPU has ended, then the call begins; the memory is let go when it has ended; nothing is copied."""
    with stand_in(store, rank, size) as backend:
        real = backend._call

        def call(made: Call) -> Any:
            LOG.append("transfer")
            assert made.output[0] == x.host.data_ptr()
            work = real(made)
            LOG.append("made")
            return work

        with mock.patch.object(backend, "_call", call):
            x = OnGpu(torch.full((1000,), rank + 1.0))
            dist.all_reduce(x)
            assert x.host.eq(sum(range(1, size + 1))).all()
            assert released() == ["alias", "record", "fence", "transfer", "made", "release"]

            x = OnGpu(torch.full((1000,), rank + 1.0))
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            assert x.host.eq(sum(range(1, size + 1))).all()
            LOG.append("waited")
            del work
            seen = released()
            assert seen[:5] == ["alias", "record", "fence", "transfer", "made"]
            assert sorted(seen[5:]) == ["release", "waited"]


def calls(rank: int, size: int, store: dist.Store) -> None:
    """Every call comes to the backend and does what it does in host memory."""
    everyone = range(size)

    def mine(n: int, r: int = rank) -> torch.Tensor:
        return torch.arange(n) * 10.0 + r

    def same(t: OnGpu, want: torch.Tensor) -> None:
        assert torch.equal(t.host, want), (t.host, want)

    def room(n: int) -> OnGpu:
        return OnGpu(torch.full((n,), -1.0))

    total, all_of = sum(mine(2 * size, r) for r in everyone), torch.cat([mine(2, r) for r in everyone])
    part = slice(2 * rank, 2 * rank + 2)
    with stand_in(store, rank, size):
        x = OnGpu(mine(2 * size))
        dist.all_reduce(x, dist.ReduceOp.MAX)
        same(x, mine(2 * size, size - 1))
        x = OnGpu(mine(2 * size))
        dist.broadcast(x, size - 1)
        same(x, mine(2 * size, size - 1))
        x = OnGpu(mine(2 * size))
        dist.reduce(x, 0)
        same(x, total if rank == 0 else x.host)
        x, out = OnGpu(mine(2)), room(2 * size)
        dist.all_gather_into_tensor(out, x)
        same(out, all_of)
        outs = [room(2) for _ in everyone]
        dist.all_gather(outs, x)
        same(outs[-1], mine(2, size - 1))
        outs = [room(2) for _ in everyone]
        dist.gather(x, outs if rank == 0 else None, 0)
        same(outs[-1], mine(2, size - 1) if rank == 0 else outs[-1].host)
        x, out = OnGpu(mine(2 * size)), room(2)
        dist.reduce_scatter_tensor(out, x)
        same(out, total[part])
        out = room(2)
        dist.reduce_scatter(out, [OnGpu(p) for p in mine(2 * size).chunk(size)])
        same(out, total[part])
        out = room(2)
        dist.scatter(out, [OnGpu(mine(2, r)) for r in everyone] if rank == 0 else None, 0)
        same(out, mine(2))
        out = room(2 * size)
        dist.all_to_all_single(out, x)
        same(out, torch.cat([mine(2 * size, r)[part] for r in everyone]))
        outs = [room(2) for _ in everyone]
        dist.all_to_all(outs, [OnGpu(p) for p in mine(2 * size).chunk(size)])
        same(outs[-1], mine(2 * size, size - 1)[part])
        # Strided: through a copy, of the bytes that are shown.
        x = OnGpu(mine(2 * size).reshape(2, size).t())
        dist.all_reduce(x)
        same(x, total.reshape(2, size).t())
        dist.barrier()


def several(rank: int, size: int, store: dist.Store) -> None:
    """The calls that take several tensors, and those by which newer torch names the ones of one tensor."""
    everyone = range(size)

    def mine(n: int, r: int = rank) -> torch.Tensor:
        return torch.arange(n) * 10.0 + r

    with stand_in(store, rank, size):
        group = dist.group.WORLD
        pair = [OnGpu(mine(3)), OnGpu(mine(4))]
        group.allreduce_coalesced(pair).wait()
        assert all(
            torch.equal(t.host, sum(mine(n, r) for r in everyone)) for t, n in zip(pair, (3, 4), strict=True)
        )
        x, out = OnGpu(mine(2)), OnGpu(torch.empty(2 * size))
        group.allgather_into_tensor_coalesced([out], [x]).wait()
        assert torch.equal(out.host, torch.cat([mine(2, r) for r in everyone]))
        outs = [OnGpu(torch.empty(2)) for _ in everyone]
        group.allgather_coalesced([[o] for o in outs], [x]).wait()
        assert all(torch.equal(t.host, mine(2, r)) for r, t in enumerate(outs))
        x, out = OnGpu(mine(2 * size)), OnGpu(torch.empty(2))
        group.reduce_scatter_tensor_coalesced([out], [x]).wait()
        assert torch.equal(out.host, sum(mine(2 * size, r) for r in everyone)[2 * rank : 2 * rank + 2])


def sends(rank: int, size: int, store: dist.Store) -> None:
    """Of bytes that are shown, to one rank and from any."""

    def mine(n: int, r: int) -> torch.Tensor:
        return torch.arange(n) * 10.0 + r

    n = 1 << 15
    with stand_in(store, rank, size):
        x, out = OnGpu(mine(n, rank)), OnGpu(torch.zeros(n))
        works = [dist.isend(x, (rank + 1) % size), dist.irecv(out, (rank - 1) % size)]
        for work in works:
            work.wait()
        assert torch.equal(out.host, mine(n, (rank - 1) % size))
        if rank == 0:
            dist.send(x, 1)
        if rank == 1:
            out = OnGpu(torch.zeros(n))
            dist.recv(out)
            assert torch.equal(out.host, mine(n, 0))


def without(rank: int, size: int, store: dist.Store) -> None:
    """Memory that torch cannot show goes through copies."""

    def refuses(storage: torch.UntypedStorage) -> None:
        raise RuntimeError("not a shared allocation")

    with stand_in(store, rank, size), mock.patch.object(torch.mps, "_host_alias_storage", refuses):
        assert mps.shown(OnGpu(torch.ones(3))) is None
        with mock.patch.object(torch.mps, "_host_alias_storage", None):
            assert mps.shown(OnGpu(torch.ones(3))) is None
    assert not LOG
