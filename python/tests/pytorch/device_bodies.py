"""What ranks do in `test_device.py`: calls as those on CUDA tensors, on tensors in host memory. Gloo, or something that does nothing,
stands in for torch's process group over NCCL."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from failure_bodies import caught
from torch._C import _distributed_c10d as _c10d

from comity.errors import MisuseError
from comity.torch.device import UNTAKEN

#: Seconds that a rank waits for what another does.
PATIENCE = 30.0


class Silent:
    """Takes any call, as a stream does, and says nothing of what comes of it."""

    def __init__(self) -> None:
        self.aborted = threading.Event()
        #: Whether calls end.
        self.ends = True
        self.calls: list[str] = []
        self.limit = PATIENCE
        self.since: float | None = None

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> None:
            self.calls.append(name)
            if not self.ends and self.since is None:
                self.since = time.monotonic()

        return call

    def _set_default_timeout(self, limit: timedelta) -> None:
        self.limit = limit.total_seconds()

    def get_error(self) -> Any:
        late = self.since is not None and time.monotonic() > self.since + self.limit
        return _c10d.ErrorType.TIMEOUT if late else _c10d.ErrorType.SUCCESS

    def abort(self) -> None:
        self.aborted.set()


class Gloo:
    """Moves data."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._inner = dist.ProcessGroupGloo(
            dist.PrefixStore("gloo", store), rank, size, timedelta(seconds=PATIENCE)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_error(self) -> Any:
        return _c10d.ErrorType.SUCCESS

    def abort(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


class Blocks(Gloo):
    """Makes the calls of a block at its end, as NCCL does."""

    _block: list[Any] | None = None

    def _start_coalescing(self) -> None:
        self._block = []

    def _allgather_base(self, *args: Any) -> Any:
        if self._block is None:
            return self._inner._allgather_base(*args)
        self._block.append(args)
        return None

    def allgather(self, *args: Any) -> Any:
        assert self._block is None, "torch would fill the lists before the calls are made"
        return self._inner.allgather(*args)

    def _end_coalescing(self) -> Any:
        block, self._block = self._block, None
        works = [self._inner._allgather_base(o.view(-1), i.view(-1), opts) for o, i, opts in block]
        for work in works[:-1]:
            work.wait()
        return works[-1]


def on(inner: Any) -> Any:
    """This rank's group, whose calls on devices `inner` carries."""
    from comity.torch.device import DeviceGroup

    group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    members = list(range(group._size))
    watch = group._group.subgroup(members, 0x6375_6461_0000, timeout=PATIENCE) if group._size > 1 else None
    group._device, group._stand_in = DeviceGroup(group, inner, watch, -1), inner
    return group


def put(group: Any, t: torch.Tensor, name: str = "allreduce") -> Any:
    """A call on the device."""
    opts = _c10d.BroadcastOptions() if name == "broadcast" else dist.AllreduceOptions()
    return group._device_for("all_reduce", t).call(name, [t], opts)


def told(group: Any) -> list:
    """What ends the group's calls, and the seconds until then; and whether the streams were let go."""
    return [*ended(group), group._stand_in.aborted.wait(PATIENCE)]


def ended(group: Any) -> tuple:
    """What ends the group's calls, which keep coming, and the seconds until then."""

    def calls() -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            group._check_open("all_reduce")
            time.sleep(0.005)

    return caught(calls)


def results(rank: int, size: int) -> None:
    """Tensors that are taken as they are, and all kinds that are not."""
    store = dist.distributed_c10d._get_default_store()
    group = on(Gloo(store, rank, size))
    total, R = float(sum(range(1, size + 1))), dist.ReduceOp
    t = torch.full((5,), rank + 1.0)
    put(group, t).wait()
    assert t.tolist() == [total] * 5
    t.fill_(rank + 1.0)
    group.allreduce([t], dist.AllreduceOptions()).wait()
    assert t.tolist() == [total] * 5
    wide = torch.full((4, 2), rank + 1.0)
    work = put(group, wide[:, 0])
    assert work.get_future().wait()[0].data_ptr() == wide.data_ptr()
    assert wide[:, 0].tolist() == [total] * 4 and wide[:, 1].tolist() == [rank + 1.0] * 4
    # Reductions that NCCL has not go through host memory.
    bits = torch.tensor([1 << rank, 3], dtype=torch.int32)
    opts = dist.AllreduceOptions()
    opts.reduceOp = R.BOR
    group._device_for("all_reduce", bits).call("allreduce", [bits], opts).wait()
    assert bits.tolist() == [(1 << size) - 1, 3]
    # Types that it has not travel as bytes.
    for dtype in (torch.int16, torch.complex128, torch.float8_e4m3fn):
        shape = (3,) if dtype is not torch.complex128 else (3, 2)
        root = torch.full(shape, 1.0 if rank else 2.0).to(dtype)
        put(group, root, "broadcast").wait()
        assert root.to(torch.complex128).real.eq(2).all(), (dtype, root)
    half = torch.full((2,), rank + 1, dtype=torch.int16)
    outs = [torch.zeros(4, dtype=torch.int16)[::2] for _ in range(size)]
    group._device_for("all_gather", half).call("allgather", [outs], [half], _c10d.AllgatherOptions()).wait()
    assert [o.tolist() for o in outs] == [[r + 1] * 2 for r in range(size)]


def gathered_in_blocks(rank: int, size: int) -> None:
    """all_gather into lists, of calls that go out as one: all_gather_coalesced, and a block of the program's."""
    group = on(Blocks(dist.distributed_c10d._get_default_store(), rank, size))
    device, opts = group._device, _c10d.AllgatherOptions()

    def lists() -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
        given = [torch.full((2,), rank + 1.0), torch.full((3,), rank + 1, dtype=torch.int64)]
        # Dense, and with strides.
        dense = [torch.zeros(2) for _ in range(size)]
        return given, [dense, [torch.zeros(3, 2, dtype=torch.int64)[:, 1] for _ in range(size)]]

    def right(outputs: list[list[torch.Tensor]]) -> bool:
        return all(parts[r].eq(r + 1).all() for parts in outputs for r in range(size))

    given, outputs = lists()
    pairs = [([parts], [t]) for parts, t in zip(outputs, given, strict=True)]
    group._together("allgather", pairs, opts).wait()
    assert right(outputs), outputs
    given, outputs = lists()
    device.begin_block()
    for parts, t in zip(outputs, given, strict=True):
        device.call("allgather", [parts], [t], opts)
    assert not any(t.any() for parts in outputs for t in parts)
    device.end_block().wait()
    assert right(outputs), outputs


def quick(rank: int, size: int) -> list:
    """An all_reduce as training makes it goes to the device in few steps; not in a block, nor once the group has ended."""
    group = on(Silent())
    device, opts = group._device, dist.AllreduceOptions()

    def taken(t: torch.Tensor) -> bool:
        return device.all_reduce([t], opts) is not UNTAKEN

    said = [taken(torch.ones(8)), taken(torch.ones(8).half())]
    hidden = torch.tensor([1j]).conj().imag
    said += [taken(torch.ones(8, dtype=torch.int32)), taken(torch.ones(4, 2)[:, 0]), taken(hidden)]
    group.start_coalescing()
    said.append(taken(torch.ones(8)))
    group.end_coalescing()
    said.append(taken(torch.ones(8)))
    group._closed = MisuseError("it has ended")
    group.start_coalescing()
    group.end_coalescing()
    return [*said, taken(torch.ones(8))]


def refused(rank: int, size: int) -> list:
    """What is wrong with one rank's tensors is told on it, and the group goes on."""
    group = on(Silent())
    device = group._device
    opts = _c10d.AllgatherOptions()
    said = [
        caught(lambda: put(group, torch.eye(3).to_sparse())),
        caught(
            lambda: device.call("_allgather_base", torch.empty(4), torch.empty(2, dtype=torch.int16), opts)
        ),
    ]
    assert device.inner.calls == []
    put(group, torch.ones(1))
    return said


def different(rank: int, size: int, how: str) -> list:
    """The last rank makes another call than the rest, in the middle of equal ones."""
    group, odd = on(Silent()), rank == size - 1
    for i in range(20):
        t = torch.ones(64)
        if i == 11 and odd:
            t = torch.ones(256) if how == "count" else torch.ones(64, dtype=torch.float64)
        put(group, t, "broadcast" if how == "operation" and i == 11 and odd else "allreduce")
    return told(group)


def barriers(rank: int, size: int) -> list:
    """What was called before a barrier has been compared after it."""
    group = on(Silent())
    for _ in range(4):
        put(group, torch.ones(8))
    # The watches meet seldom now.
    time.sleep(0.8)

    def call(n: int) -> None:
        put(group, torch.ones(n))
        dist.barrier()

    many = caught(lambda: [dist.barrier() for _ in range(5)])
    return [many, caught(lambda: call(9 if rank == 1 else 8))]


def one_more(rank: int, size: int, more: bool) -> list:
    """Rank 0 may make a call that no other makes, as its last."""
    group = on(Silent())
    for _ in range(3 + (rank == 0 and more)):
        put(group, torch.ones(8))
    return [caught(dist.destroy_process_group)]


def killed(rank: int, size: int) -> list:
    """The last rank dies while the others' streams wait for it."""
    inner = Silent()
    group = on(inner)
    put(group, torch.ones(8))
    dist.barrier()
    # Nobody is in the barrier any more when it dies.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"past {rank}", "")
    if rank == size - 1:
        store.wait([f"past {r}" for r in range(size)])
        os.kill(os.getpid(), signal.SIGKILL)
    inner.ends = False
    return told(group)


def stopped(rank: int, size: int) -> list:
    """The last rank is stopped, and goes on when the others have been told."""
    store = dist.distributed_c10d._get_default_store()
    group = on(Silent())
    put(group, torch.ones(8))
    dist.barrier()
    if rank == size - 1:
        store.set("pid", str(os.getpid()))
        store.wait(["told"])
        return []
    pid = int(store.get("pid"))
    if rank == 0:
        os.kill(pid, signal.SIGSTOP)
    try:
        said = told(group)
    finally:
        if store.add("through", 1) == size - 1:
            os.kill(pid, signal.SIGCONT)
            store.set("told", "")
    return said


def late(rank: int, size: int) -> list:
    """The last rank does not make a call that the others wait in."""
    inner = Silent()
    group = on(inner)
    put(group, torch.ones(8))
    inner.ends = False
    if rank != size - 1:
        put(group, torch.ones(32))
    # The limit passes when all the others have made the call.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"called {rank}", "")
    store.wait([f"called {r}" for r in range(size)])
    group.set_timeout(timedelta(seconds=0.5))
    return told(group)


def slow_to_leave(rank: int, size: int) -> list:
    """Rank 0 goes on long after the others have left: what it called has ended, and another call would need them."""
    inner = Silent()
    group, gone = on(inner), weakref.ref(inner)
    put(group, torch.ones(8))
    dist.barrier()
    if rank:
        group._device._watch.stop()
        return []
    said, calls = ended(group), inner.calls
    let_go = inner.aborted.wait(1.0)
    calls.clear()
    del inner, group._stand_in
    gc.disable()
    left = caught(dist.destroy_process_group)
    gc.enable()
    # What carried calls is not left to Python's collection.
    return [said, let_go, left, calls, gone() is None]


def block(rank: int, size: int) -> list:
    """Calls that go out together: one work, in order, and whatever was to be copied back."""
    inner = Silent()
    group = on(inner)
    group.start_coalescing()
    put(group, torch.ones(8))
    put(group, torch.ones(4, 2)[:, 0])
    parts = [torch.ones(2) for _ in range(size)]
    group._device.call("allgather", [parts], [torch.ones(2)], _c10d.AllgatherOptions())
    group._device.move("send", torch.ones(2), (rank + 1) % size)
    group._device.move("recv", torch.ones(2), (rank - 1) % size)
    group.end_coalescing().wait()
    # Nothing was called: nothing begins.
    group.start_coalescing()
    group.end_coalescing()
    return list(inner.calls)


class Graph:
    """Holds calls, as a graph does, and is held by something that only a collection finds."""

    def __init__(self) -> None:
        self.me = self


def held(rank: int, size: int) -> list:
    """A communicator that is given up while a graph holds its calls lets the stream go, and is gone when the group has been left."""
    inner = Silent()
    group = on(inner)
    gone = threading.Event()
    weakref.finalize(Graph(), gone.set)

    def abort() -> None:
        inner.aborted.set()
        gone.wait(PATIENCE)

    inner.abort = abort
    put(group, torch.ones(8 + rank))
    gc.disable()
    try:
        said = told(group)
        before = gone.is_set()
        dist.destroy_process_group()
    finally:
        gc.enable()
    return [
        said[0],
        said[-1],
        before,
        gone.is_set(),
        [t.name for t in threading.enumerate() if t.name == "comity-abort"],
    ]


def last_words(rank: int, size: int) -> list:
    """Torch's watchdog still writes of a call that was late, in the interpreter, when the group is left: the process could end then."""
    inner, written = Silent(), []
    group = on(inner)

    def shutdown() -> None:
        time.sleep(0.5)
        written.append("all")

    inner.shutdown = shutdown
    put(group, torch.ones(8))
    inner.ends = False
    put(group, torch.ones(8))
    group.set_timeout(timedelta(seconds=0.1))
    said = told(group)
    dist.destroy_process_group()
    return [said[0], said[-1], written]


def aborted(rank: int, size: int) -> list:
    group = on(Silent())
    put(group, torch.ones(8))
    store = dist.distributed_c10d._get_default_store()
    store.set(f"called {rank}", "")
    if rank == 0:
        store.wait([f"called {r}" for r in range(size)])
        group.abort()
    return told(group)
