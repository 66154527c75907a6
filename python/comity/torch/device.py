"""Calls on CUDA tensors: torch's own process group over NCCL carries them (`nccl.py`), in the calling thread, without waiting for others.

Works and futures are nccl's. Beside that each call is noted (`ledger.py`), and a thread compares notes with the other ranks (`watch.py`).
Where that finds a difference, a late call or a death, the communicator is given up, so no stream waits for ever, and later calls raise why.

Tensors that NCCL takes as they are go to it as they are. Others, such as strided ones, go through copies on the device, and reductions
that NCCL has not through host memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from comity.errors import Error, MisuseError

from . import tracing
from .endings import Ending, let_go
from .ledger import Ledger
from .staging import FLOATS, NATIVE, StreamWork, as_list, copied, count_of, hosted, reduces, tensors_of
from .tensors import Finish, alike, check, write
from .watch import BROKEN, LATE, Watch
from .work import Done

_AllreduceOptions = _c10d.AllreduceOptions
_NO_OPTIONS = _AllreduceOptions()
#: Operations by torch's names of methods.
OPS = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "broadcast": "broadcast", "reduce": "reduce", "allgather": "all_gather",
    "_allgather_base": "all_gather", "gather": "gather", "scatter": "scatter", "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter", "alltoall_base": "all_to_all", "alltoall": "all_to_all",
}  # fmt: skip
_REDUCE = {"allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base"}
#: Seconds that NCCL's own error waits for the watch's, which says more.
_PATIENCE = 1.0
#: Seconds that giving up a communicator mostly takes at most.
_ABORT = 2.0
_TIMEOUT, _BROKEN = _c10d.ErrorType.TIMEOUT, _c10d.ErrorType.COMM_ERROR
_STRIDED = torch.strided
#: The work of a call that its caller did not want to wait for: the stream keeps the order. C++ takes no None for it.
ENDED = Done([])
#: What a call answers that does not take its tensors.
UNTAKEN: Any = object()
_log = logging.getLogger("comity.torch")


def _untaken(*_: Any) -> Any:
    return UNTAKEN


class DeviceGroup:
    """One rank's calls on one device."""

    def __init__(self, owner: Any, inner: Any, group: Any, index: int) -> None:
        """`owner`: the group that this serves. `inner`: what carries calls. `group`: of the core, for the watch; None for a single rank.
        `index`: the device's number, -1 for the host's memory."""
        self.inner = inner
        self._owner = owner
        self.index = index
        self._ledger = Ledger(owner._metrics.counted)
        self._all_gather = inner._allgather_base
        self._reduce_scatter = inner._reduce_scatter_base
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        #: What calls of a block were made so far, and what is to be done behind them.
        self._block: list[str] | None = None
        self._finishes: list[Finish] = []
        self._watch: Watch | None = None
        alone = group is None
        self.note = self._ledger.count if alone else self._ledger.note
        self._quick_all_reduce = self._all_reducing(_untaken)
        self._direct_all_reduce = self._all_reducing(owner.allreduce)
        self._hasten(True)
        if not alone:
            self._watch = Watch(self, group, self._ledger)

    # -- calls

    def _all_reducing(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """An all_reduce of floats that NCCL takes as they are, as training makes them; any other goes to `otherwise`. In few steps:
        DistributedDataParallel calls it from C++ between other work, when nothing of it is in the processor's caches."""
        index, note, call = self.index, self.note, self.inner.allreduce

        def allreduce(tensors: list[torch.Tensor], opts: Any = _NO_OPTIONS) -> Any:
            if type(opts) is not _AllreduceOptions or type(tensors) is not list or len(tensors) != 1:
                return otherwise(tensors, opts)
            t = tensors[0]
            dtype, count = t.dtype, t.numel()
            if (
                t.get_device() != index
                or dtype not in FLOATS
                or not t.is_contiguous()
                or (count < 2 and t.is_neg())
            ):
                return otherwise(tensors, opts)
            try:
                work = call(tensors, opts)
            except Exception as e:
                raise self._reason(e) from None
            note(("all_reduce", dtype, count, opts))
            return ENDED if work is None else work

        return tracing.skipped(allreduce)

    def _hasten(self, quick: bool) -> None:
        """Whether calls may be made in few steps: not in a block, nor once the group has ended."""
        owner = self._owner
        self._quick = quick = quick and owner._codec is None and owner._closed is None
        self.all_reduce = self._quick_all_reduce if quick else _untaken
        owner._shortcut(self._direct_all_reduce if quick else None)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        """As `all_reduce`: in few steps, or `UNTAKEN`."""
        return self._pair(self._all_gather, "all_gather", output, input, output, opts)

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        """As `all_reduce`."""
        return self._pair(self._reduce_scatter, "reduce_scatter", output, input, input, opts)

    def _pair(
        self,
        method: Callable[..., Any],
        op: str,
        output: torch.Tensor,
        input: torch.Tensor,
        large: torch.Tensor,
        opts: Any,
    ) -> Any:
        """A call from one tensor to another. `large`: the one with the elements of all ranks."""
        index, dtype, count = self.index, large.dtype, large.numel()
        if not (
            self._quick
            and opts is not None
            and dtype in FLOATS
            and input.get_device() == index == output.get_device()
            and input.is_contiguous()
            and output.is_contiguous()
            and (count > self._owner._size or not (input.is_neg() or output.is_neg()))
        ):
            return UNTAKEN
        try:
            work = method(output, input, opts)
        except Exception as e:
            raise self._reason(e) from None
        self.note((op, dtype, count, opts))
        return ENDED if work is None else work

    def call(self, name: str, *args: Any) -> Any:
        """The call of c10d with this name: outputs first, then inputs, then the rest. Returns its work."""
        op = OPS[name]
        tensors = tensors_of(args)
        if self._block is not None and name == "allgather" and len({t.numel() for t in tensors}) == 1:
            return self._gathered_in_block(*args)
        if all(map(self._plain, tensors)) and (name not in _REDUCE or reduces(tensors[0], args[-1])):
            return self._put(name, op, tensors, args)
        return self._staged(name, op, tensors, args)

    def call_then(self, name: str, args: Sequence[Any], after: Sequence[Finish], result: Any) -> Any:
        """As `call`; then, in the stream's order, what is `after`. `result`: the future's value."""
        work = self.call(name, *args)
        return self._followed(work, after, result)

    def _put(self, name: str, op: str, tensors: list[torch.Tensor], args: Sequence[Any]) -> Any:
        """Hand it over, and note it."""
        if self._block is not None and not self._block:
            self.inner._start_coalescing()
        try:
            work = getattr(self.inner, name)(*args)
        except Exception as e:
            raise self._reason(e) from None
        self.note((op, tensors[-1].dtype, count_of(name, args), args[-1]))
        if self._block is not None:
            self._block.append(op)
        return ENDED if work is None else work

    def _plain(self, t: torch.Tensor) -> bool:
        """Whether NCCL takes it as it is."""
        return (
            t.get_device() == self.index
            and t.dtype in NATIVE
            and t.layout is _STRIDED
            and t.is_contiguous()
            and not t.is_neg()
        )

    def _reason(self, e: BaseException) -> BaseException:
        """Why a call could not be made: the group's end if it has one, which is what NCCL's error comes from then."""
        if isinstance(e, dist.DistBackendError) and self._watch is not None:
            self._given_up.wait(_PATIENCE)
        closed = self._owner._closed
        if closed is None:
            return e
        return type(closed)(f"rank {self._owner._rank}: {closed}", closed.rank, closed.call, closed.cause)

    # -- what NCCL does not take as it is

    def _staged(self, name: str, op: str, tensors: list[torch.Tensor], args: Sequence[Any]) -> Any:
        rank = self._owner._rank
        for t in tensors:
            check(t, op, rank)
            if t.get_device() != self.index and t.get_device() >= 0:
                raise MisuseError(
                    f"rank {rank}: {op} got a tensor on {t.device}, and this group's calls are on cuda:{self.index}: "
                    "one device per rank and group; torch.cuda.set_device chooses it",
                    rank,
                    op,
                )
        alike(tensors, op, rank)
        if name in _REDUCE and not reduces(tensors[0], args[-1]):
            return self._over_host(name, args)
        after: list[Finish] = []
        copies = [copied(a, after, written=i == 0) for i, a in enumerate(args)]
        work = self._put(name, op, tensors, copies)
        if self._block is not None:
            self._finishes += after
            return work
        return self._followed(work, after, as_list(args[0]))

    def _followed(self, work: Any, after: Sequence[Finish], result: Any) -> Any:
        if work is not None:
            work.wait()  # WAIT: nobody; the stream waits
        for finish in after:
            finish()
        return Done(result) if self.index < 0 else StreamWork(result, self.index)

    def _over_host(self, name: str, args: Sequence[Any]) -> Any:
        """A reduction that NCCL has not, or means otherwise."""
        after: list[Finish] = []
        copies = [hosted(a, after, written=i == 0) for i, a in enumerate(args)]
        work = getattr(self._owner, name)(*copies)
        if work is not None:
            work.wait()  # WAIT: the group's limit
        return self._followed(None, after, as_list(args[0]))

    # -- several calls at once

    def _gathered_in_block(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Any:
        """An all_gather into lists, in a block. Torch fills lists before the block's calls are made, so it is done here, behind."""
        size = self._owner._size
        for parts, given in zip(outputs, inputs, strict=True):
            whole = torch.empty((size, *given.shape), dtype=given.dtype, device=given.device)
            self.call("_allgather_base", whole, given, opts)
            for part, got in zip(parts, whole.unbind(), strict=True):
                self._finishes.append(lambda part=part, got=got: write(part, got.view_as(part)))
        return ENDED

    def begin_block(self) -> None:
        self._hasten(False)
        self._block, self._finishes = [], []

    def end_block(self) -> Any:
        """The work of all; None if there was no call."""
        block, self._block = self._block, None
        self._hasten(True)
        if not block:
            return None
        if self.inner is None:
            self._owner._check_open("end_coalescing")
        work = self.inner._end_coalescing()
        return self._followed(work, self._finishes, []) if self._finishes else work

    def move(self, name: str, tensor: torch.Tensor, peer: int) -> Any:
        """`send` or `recv` in a block."""
        if not self._plain(tensor):
            return self._staged_move(name, tensor, peer)
        if not self._block:
            self.inner._start_coalescing()
        self._block.append(name)
        return getattr(self.inner, name)([tensor], peer, 0)

    def _staged_move(self, name: str, tensor: torch.Tensor, peer: int) -> Any:
        check(tensor, name, self._owner._rank)
        after: list[Finish] = []
        work = self.move(name, copied(tensor, after, written=name == "recv"), peer)
        self._finishes += after
        return work

    def settle(self) -> None:
        """Wait until the caller's stream has done what it holds, and the ranks' calls so far have been compared; a barrier does so."""
        if self.index >= 0:
            torch.cuda.current_stream(self.index).synchronize()
        if self._watch is not None:
            self._watch.compare(self._owner._limit)

    # -- the end

    def limit(self) -> float:
        """Seconds that a call may take."""
        return self._owner._limit

    def failed(self, error: Error) -> None:
        """The watch says that calls have no meaning any more."""
        owner = self._owner
        if owner._closed is None:
            owner._closed = error
        self._hasten(False)
        _log.error("rank %d of group %r: %s", owner._rank, owner._name, error)
        self.abort()
        for group in owner._groups():
            group.abort(str(error))

    def left(self, error: Error) -> None:
        """A rank has left in good order: what is under way may need it no more, and what comes would."""
        if self._owner._closed is None:
            self._owner._closed = error
        self._hasten(False)

    def state(self) -> int:
        """What torch's watchdog has seen of calls on their way."""
        inner = self.inner
        if inner is None:
            return 0
        kind = inner.get_error()
        return LATE if kind == _TIMEOUT else BROKEN if kind == _BROKEN else 0

    def set_timeout(self, timeout: timedelta) -> None:
        if self.inner is not None:
            self.inner._set_default_timeout(timeout)

    def abort(self) -> None:
        """Give the communicator up: what is on streams ends, with whatever it has written by then."""
        with self._lock:
            first = not self._given_up.is_set()
            self._given_up.set()
        inner = self.inner
        if first and inner is not None:
            # NCCL lets streams go at once, and comes back when no graph holds its calls any more. The shutdown of a communicator that was
            # given up waits for torch's watchdog only.
            Ending("comity-abort", inner.abort, inner.shutdown).freed.wait(_ABORT)

    def close(self, limit: float) -> list[str]:
        """Leave in good order, so many seconds at most; the calls that were not done by then, in words. Raises `MismatchError`."""
        self._hasten(False)
        try:
            return self._close(limit)
        finally:
            self._release()

    def _close(self, limit: float) -> list[str]:
        try:
            if self._watch is not None:
                self._watch.finish(limit)
        except Error:
            self.abort()
            raise
        if self._given_up.is_set():
            let_go(_ABORT)
            return []
        ends = Ending("comity-shutdown", self._shut_down)
        ends.join(limit)
        if not ends.is_alive():
            return []
        self.abort()
        return [f"{self._ledger.last()} on CUDA tensors"]

    def _shut_down(self) -> None:
        if self.index >= 0:
            torch.cuda.set_device(self.index)
        self.inner.shutdown()

    def leave(self, why: str | None = None) -> None:
        """Leave at once; where there is a reason, all ranks are told."""
        self._hasten(False)
        if self._watch is not None:
            self._watch.stop(why)
        self.abort()
        let_go(_ABORT)
        self._release()

    def _release(self) -> None:
        """Let go of what carried calls. Else Python may do so much later, on any thread, in the middle of the capture of a graph."""
        self.inner = self._all_gather = self._reduce_scatter = None
        self._quick_all_reduce = self._direct_all_reduce = _untaken
