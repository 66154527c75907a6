"""How the backend's groups begin and end, and their limits: shared by `backend.py` and `process_group.py`."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from comity import _core, _process
from comity.errors import (
    AbortedError,
    ConfigError,
    Error,
    ForkedError,
    GroupClosedError,
    MismatchError,
    MisuseError,
)
from comity.errors import TimeoutError as LimitPassed

from . import callbacks, metrics, nccl
from .compression import Codec, codec
from .device import DeviceGroup
from .endings import let_go
from .mailbox import Mailbox
from .meeting import Meeting, other_size, started
from .reconfigure import Reconfigurable
from .routes import Routes
from .turns import Channels
from .versions import refuse_others
from .work import seconds

#: Groups that are open. Some of torch's wrappers keep the C++ half of a backend only.
_open: set[Any] = set()
_log = logging.getLogger("comity.torch")
#: How long `shutdown` waits for calls that were started and nobody waited for: seconds. Another rank may be late with its own.
_FLUSH = 5.0
#: Where the ranks meet for calls on a device.
_DEVICE_LABEL = 0x6375_6461_0000
#: The same for the end of a process, and for callbacks that run then.
_LAST_WORDS = 2.0


@atexit.register
def _leave() -> None:
    """Close what is still open: a thread that came back to an interpreter that has ended would take the process down with an abort."""
    for group in list(_open):
        with contextlib.suppress(Error):
            group.leave()
    let_go(_LAST_WORDS)
    until = time.monotonic() + _LAST_WORDS
    while callbacks.running() and time.monotonic() < until:
        time.sleep(0.001)


def _listen_at_master() -> dict[str, str]:
    """Without a key no public address is listened on. MASTER_ADDR says which network is meant: this rank's address there.

    In a job of `comity launch` on several hosts it is each host's own, and COMITY_STORE has the addresses of the network.
    """
    master = os.environ.get("MASTER_ADDR")
    if store := os.environ.get("COMITY_STORE"):
        master = store.split(",")[0].rpartition(":")[0].strip("[]")
    insecure = os.environ.get("COMITY_INSECURE", "").lower() in ("1", "true")
    if not master or not insecure or "COMITY_ADDRS" in os.environ:
        return {}
    # What cannot be found here is left to the usual choice.
    with contextlib.suppress(OSError):
        family, kind, _, _, at = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # Sends nothing: it asks the system by which address the way there begins.
            probe.connect(at)
            return {"COMITY_ADDRS": probe.getsockname()[0]}
    return {}


class Options:
    """Settings beside rank and size: `init_process_group("comity", pg_options=comity.torch.Options(...))`.

    Args:
        compression: `"fp16"`, `"bf16"`, `"int8"` or `"topk"` for what `all_reduce` sends of float32 sums and averages; by
            default what COMITY_TORCH_COMPRESSION says, else no compression. Give the same on all ranks.
        ratio: The share of elements that `"topk"` sends.
        threshold: Tensors of fewer bytes are sent as they are.
    """

    def __init__(
        self, compression: str | None = None, *, ratio: float = 0.01, threshold: int = 1 << 16
    ) -> None:
        self.compression = (
            compression if compression is not None else os.environ.get("COMITY_TORCH_COMPRESSION") or None
        )
        self.ratio = ratio
        self.threshold = threshold


class Lifecycle(Reconfigurable, Routes):
    """A group of the core with torch's ways to begin and end it."""

    #: The process group whose first call looks whether its devices are all Comity's; None once it has.
    _unseen: Any = None

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def _begin(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta | float,
        options: Options,
        name: str,
        ranks: Sequence[int],
        group: Any = None,
        waits: bool = False,
    ) -> None:
        """`ranks`: the members' in the job, if they are known. `group`: of the core, if it is there already. `waits`: nobody is met before
        the first `reconfigure`."""
        self._rank, self._size, self._store, self._name = rank, size, store, name
        #: Where groups meet that are configured anew.
        self._base = store
        self._ranks = ranks or range(size)
        self._options: Options = options
        self._codec: Codec | None = codec(options.compression, options.ratio, options.threshold)
        self._limit = seconds(timeout) or 300.0
        #: Number of rank 0's try at which the ranks of this group met, or those of the group that it is a part of.
        self._try = 0
        self._metrics = metrics.Metrics()
        self._closed: Error | None = None
        self._left = False
        self._home = os.getpid()
        self._channels: Channels | None = None
        self._post_office: Mailbox | None = None
        self._device: DeviceGroup | None = None
        if waits:
            self._wait_to_be_configured()
        else:
            limit = None if "COMITY_JOIN_TIMEOUT" in os.environ else self._limit
            self._use(group or self._meet(Meeting(store, rank, size, name), limit))

    def _use(self, group: Any) -> None:
        """Make calls on this group of the core."""
        self._calls = self._barriers = self._splits = 0
        self._pending: list[Any] | None = None
        self._post_office = self._device = None
        self._group = group
        self._group.timeout = self._limit
        metrics.watch(self._group)
        self._channels = Channels(self._group, self._name, lambda: self._limit)
        _open.add(self)

    def _meet(self, meeting: Meeting, limit: float | None) -> Any:
        # Device memory has a group of its own.
        variables = {"COMITY_BACKEND": "any"} if os.environ.get("COMITY_BACKEND") == "nccl" else {}
        if limit is not None:
            variables["COMITY_JOIN_TIMEOUT"] = f"{limit:.3f}"
        variables |= _listen_at_master()
        if self._rank >= self._size and started() not in (0, self._size):
            raise ConfigError(f"rank is {self._rank}, but {other_size(self._size)}")
        met = False
        try:
            group = _core.init_with_store(
                self._rank,
                self._size,
                meeting.set,
                meeting.get,
                prefix="comity",
                variables=variables,
            )
            met = True
        finally:
            meeting.close(met)
        self._try = meeting.number
        return group

    def _device_for(self, op: str, tensor: torch.Tensor) -> DeviceGroup:
        self._check_open(op)
        self._calls += 1
        return self._device or self._make_device(op, tensor.device)

    def _make_device(self, op: str, device: torch.device) -> DeviceGroup:
        """What carries calls on this device; the first call makes it, with the other ranks."""
        group = None
        try:
            if self._size > 1:
                members = list(range(self._size))
                group = self._group.subgroup(members, _DEVICE_LABEL, timeout=self._limit)
                nccl.no_device_twice(group, device)
        except Error as e:
            words = f"rank {self._rank}: {op} of a tensor on {device}: {e}"
            raise type(e)(words, self._rank if e.rank is None else e.rank, op, e.cause) from None
        inner = nccl.make(self._store, self._rank, self._size, self._limit, self._name, self._ranks)
        self._device = DeviceGroup(self, inner, group, device.index)
        if self._pending is not None:
            self._device.begin_block()
        return self._device

    def _shortcut(self, allreduce: Callable[..., Any] | None) -> None:
        """Make `allreduce` in few steps on a device; None: as any call."""

    def _settle(self) -> None:
        if self._device is not None:
            self._device.settle()
            # A rank that died meanwhile has ended what the stream held.
            self._check_open("barrier")

    _forget = staticmethod(metrics.forget)

    def _groups(self) -> list[Any]:
        return [channel.group for channel in self._channels.all()] if self._channels is not None else []

    # -- while it is open

    def _check_open(self, op: str) -> None:
        if _process.pid != self._home:
            words = (
                f"rank {self._rank}: {op}: the group belongs to process {self._home}, from which this one was forked; "
                "make groups after the fork, or start processes with the method 'spawn'"
            )
            raise ForkedError(words, self._rank, op)
        if self._unseen is not None:
            self._look_for_others()
        if self._closed is not None:
            raise type(self._closed)(
                f"rank {self._rank}: {op}: {self._closed}", self._closed.rank, op, self._closed.cause
            )

    def _look_for_others(self) -> None:
        """Refuse a group of several backends in which Comity's took the place of the others: torch tells which there are afterwards."""
        config = dist.distributed_c10d._world.pg_backend_config.get(self._unseen)
        if config is None:
            return
        refuse_others(config)
        self._unseen = None

    def _mail(self, op: str, peer: int | None) -> Mailbox:
        """Where sends and receives go."""
        self._check_open(op)
        if peer is not None and not (0 <= peer < self._size and peer != self._rank):
            words = f"rank {self._rank}: {op}: rank {peer} is not another rank of a group of {self._size}"
            raise MisuseError(words, self._rank, op)
        if self._post_office is None:
            self._post_office = Mailbox(self._group, self._limit)
        return self._post_office

    def set_timeout(self, timeout: timedelta) -> None:
        self._limit = seconds(timeout) or self._limit
        for group in self._groups():
            group.timeout = self._limit
        if self._post_office is not None:
            self._post_office.limit = self._limit
        if self._device is not None:
            self._device.set_timeout(nccl.limit(self._limit))

    _set_default_timeout = set_timeout

    def monitored_barrier(
        self,
        timeout: Any = None,
        wait_all_ranks: bool = False,
        *,
        waitAllRanks: bool = False,
    ) -> None:
        """Rank 0 learns who comes too late, and tells everyone. It goes over torch's store, so the group itself is unharmed."""
        self._check_open("monitored_barrier")
        wait_all = wait_all_ranks or waitAllRanks
        given = getattr(timeout, "timeout", timeout)
        # None at all, or one below 0, is none; 0 s is a look at who is here.
        limit = 0.0 if given == timedelta(0) or given == 0 else seconds(given) or self._limit
        self._barriers += 1
        at = f"comity/barrier/{self._try}/{self._group.name}/{self._barriers}"
        if self._rank:
            self._store.set(f"{at}/{self._rank}", "here")
            # Rank 0 speaks at its limit; it may have begun later than this rank.
            words = self._heard(f"{at}/all", limit + 5.0)
            if words is None:
                words = f"{self._reached()}rank 0 did not answer within {limit:g} s"
                raise LimitPassed(words, 0, "monitored_barrier", None)
            if words != "here":
                late, words = words.split(" ", 1)
                ranks = [int(r) for r in late.split(",")]
                if self._rank in ranks:
                    # To one that came too late, it is about the rank that gave up.
                    about, begin = (
                        0,
                        f"rank {self._rank}: monitored_barrier: rank 0 no longer waits for this rank: ",
                    )
                else:
                    about, begin = ranks[0], self._reached()
                raise LimitPassed(begin + words, about, "monitored_barrier", words)
            return
        until = time.monotonic() + limit
        late = []
        for r in range(1, self._size):
            if self._heard(f"{at}/{r}", max(until - time.monotonic(), 0.001)) is None:
                late.append(r)
                if not wait_all:
                    break
        who = f"{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
        words = f"Rank{who} failed to pass monitoredBarrier: rank{who} did not come within {limit:g} s"
        self._store.set(f"{at}/all", f"{','.join(map(str, late))} {words}" if late else "here")
        if late:
            words = f"rank 0: monitored_barrier: {words}; Rank 0 timed out in monitoredBarrier"
            raise LimitPassed(words, late[0], "monitored_barrier", f"not here within {limit:g} s")

    def _reached(self) -> str:
        """The beginning of an error on a rank that came in time. Programs look for these words, which gloo has."""
        rank = self._rank
        reached = f"Rank {rank} successfully reached monitoredBarrier"
        return f"rank {rank}: monitored_barrier: {reached}, but received errors while waiting for send/recv from rank 0: "

    def _heard(self, key: str, limit: float) -> str | None:
        try:
            self._store.wait([key], timedelta(seconds=limit))
        except Exception:  # torch has a class of its own for this in each version
            return None
        return bytes(self._store.get(key)).decode()

    # -- its end

    def abort(self) -> None:
        """End what is under way, here and on the other ranks; later calls fail at once."""
        words = f"rank {self._rank} called abort on the process group"
        if self._closed is None:
            self._closed = AbortedError(words, self._rank, None, words)
        for group in self._groups():
            group.abort(words)
            metrics.forget(group)
        if self._device is not None:
            self._device.leave(words)
        if self._post_office is not None:
            self._post_office.end(self._closed)
        self._unseen = None
        _open.discard(self)

    def shutdown(self) -> None:
        """Leave the group in good order: calls that were started get a moment to end."""
        if self._left:
            return
        if self._closed is None:
            self._closed = GroupClosedError(
                "the process group was destroyed; init_process_group makes a new one"
            )
        self._leave(min(self._limit, _FLUSH))

    def leave(self) -> None:
        """Leave the group as the process ends; what then is under way ends with `GroupClosedError`."""
        self._leave(_LAST_WORDS)

    def _leave(self, limit: float) -> None:
        self._left, self._unseen = True, None
        _open.discard(self)
        if os.getpid() != self._home:
            # The parent is in it still, and its threads are not here.
            return
        if self._closed is None:
            self._closed = GroupClosedError("the process group was left")
        aborted = isinstance(self._closed, AbortedError)
        limit = 0.0 if aborted else limit
        given_up = self._post_office.end(self._closed, limit) if self._post_office is not None else []
        for last in (c.last for c in (self._channels.all() if self._channels is not None else [])):
            if last is not None and limit:
                try:
                    last.wait(limit)
                except LimitPassed as e:
                    given_up.append(str(e.call))
                except Error:
                    continue
        wrong = self._leave_device(limit, given_up)
        if given_up and limit:
            words = "rank %d left group %r without %s: no other rank made the matching call within %g s"
            _log.warning(words, self._rank, self._name, ", ".join(given_up), limit)
        for group in self._groups():
            metrics.forget(group)
            try:
                group.close()
            except MismatchError as e:
                # all are left, and the first that differs is told
                wrong = wrong or e
        if wrong is not None:
            raise wrong

    def _leave_device(self, limit: float, given_up: list[str]) -> MismatchError | None:
        """Leave what carries calls on CUDA tensors; what was wrong with them, if anything. `given_up`: gets the calls that did not end."""
        if self._device is None:
            return None
        if not limit:
            self._device.leave()
            return None
        try:
            given_up += self._device.close(limit)
        except MismatchError as e:
            return e
        return None

    def _part(self, ranks: Sequence[int]) -> Any:
        """The core's group of some ranks of this one; only they come."""
        self._check_open("split")
        self._splits += 1
        return self._group.subgroup(list(ranks), 0x7370_6C69_0000 + self._splits, timeout=self._limit)

    # -- what torch asks

    def getBackendName(self) -> str:
        return "comity"

    _get_backend_name = getBackendName

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        return None

    def get_error(self) -> Any:
        # A group that waits to be configured has had no error.
        well = self._closed is None or (self._revocable and not self._left)
        return _c10d.ErrorType.SUCCESS if well else _c10d.ErrorType.COMM_ERROR

    def _has_hooks(self) -> bool:
        return False
