"""How a call of torch is made on a group of the core, for `collectives.py`, `reductions.py` and `point_to_point.py`.

A call that its caller waits for (`async_op=False`) runs on that caller's thread; others are queued on the group's thread, in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._C import _distributed_c10d as _c10d

from comity._core import Args
from comity.errors import Error, MisuseError
from comity.errors import TimeoutError as LimitPassed

from . import metrics, turns
from .tensors import SIZES, Buffer, Finish, check, in_this_mode
from .versions import BACKENDS, VERSION
from .work import Done, Failed, Several, Work, seconds, with_timeout

if TYPE_CHECKING:
    from .compression import Codec
    from .device import DeviceGroup

_NO_ARGS = Args()
#: Whether torch takes no work at all for one of a call that has ended. Making one and waiting for it takes torch longer than a small call.
_NONE_IS_DONE = VERSION >= BACKENDS
#: Whether torch keeps works of calls in a graph, of those that have ended as well.
_in_graph: Callable[[], bool] = getattr(_c10d, "_allow_inflight_collective_as_graph_input", bool)


class Call(NamedTuple):
    """One call of the core, and what torch wants of it."""

    op: str
    #: Torch's options: `timeout` and `asyncOp`.
    opts: Any
    #: What the work's `result` is, and its future's value.
    result: Any
    input: Buffer | None = None
    output: Buffer | None = None
    args: Args | None = None
    #: What owns the memory, in any lists.
    keep: Any = ()
    #: What is left to do when it has ended.
    after: Sequence[Finish] = ()


def in_block(method: Callable[..., _c10d.Work]) -> Callable[..., _c10d.Work]:
    """A call that may be one of several at once. There its error is raised at the end, by `wait`: torch does not end a block that it
    leaves with an exception, and takes all later calls for parts of it."""

    @functools.wraps(method)
    def call(self: Calls, *args: Any, **options: Any) -> _c10d.Work:
        try:
            return method(self, *args, **options)
        except Exception as e:
            if self._pending is None:
                raise
            return self._noted(Work(Failed(e), []))

    return call


class Calls:
    """Calls on a group. What makes and ends groups is in `lifecycle.py`, which also keeps what is named here."""

    _rank: int
    _size: int
    #: Calls so far.
    _calls: int
    #: Works of the calls that were made at once so far; None outside of such a block.
    _pending: list[Any] | None
    _codec: Codec | None
    _channels: turns.Channels
    #: Whether works reach the program as they are, so that their futures can be Comity's: not in a group of several backends.
    _alone = True
    _metrics: metrics.Metrics
    #: What carries calls on CUDA tensors, if there was one.
    _device: DeviceGroup | None = None

    def _device_for(self, op: str, tensor: torch.Tensor) -> DeviceGroup:
        """What carries calls on CUDA tensors, of which one is to be made."""
        raise NotImplementedError

    def _call(self, call: Call) -> _c10d.Work:
        """Make a call: now if its caller waits for it, else in its turn in the background. A limit of its own comes from its options."""
        op, opts, result, inp, out, args, keep, after = call
        self._check_open(op)
        self._calls += 1
        timeout = getattr(opts, "timeout", None)
        if timeout is not None and (limit := seconds(timeout)) is not None:
            args = (args or _NO_ARGS).replace(timeout=limit)
        given = out or inp
        size = given[2] * SIZES[given[1]] if given else 0
        begun = perf_counter_ns()
        now = not getattr(opts, "asyncOp", True)
        try:
            channel = self._channels.here()
            if now:
                channel.group.run(op, inp, out, args)
                return self._ended(call, begun, size)
            request = channel.last = channel.group.start(op, inp, out, args, hold=(keep, result))
        except Error as e:
            self._metrics.failed(op)
            raise self._named(e) from None
        note = self._metrics.noting(op, size, begun)
        order = channel.turns if self._alone else None
        return self._noted(Work(request, result, all_of(after), note, order))

    def _now(self, op: str, opts: Any, result: Any, memory: Buffer, args: Args) -> _c10d.Work | None:
        """As `_call`, for what small calls mostly are: in place, on memory of the host that nothing has to be done with, for a caller that
        waits."""
        self._check_open(op)
        self._calls += 1
        timeout = opts.timeout
        # Torch's own way to say that there is none lies before 0.
        if timeout.days >= 0 and (limit := seconds(timeout)) is not None:
            args = args.replace(timeout=limit)
        begun = perf_counter_ns()
        try:
            self._channels.here().group.run(op, None, memory, args)
        except Error as e:
            self._metrics.failed(op)
            raise self._named(e) from None
        self._metrics.ended(op, memory[2] * SIZES[memory[1]], begun)
        return None if _NONE_IS_DONE and not _in_graph() else Done(result)

    def _ended(self, call: Call, begun: int, size: int) -> _c10d.Work:
        """What is left to do of a call that was made at once."""
        for finish in call.after:
            finish()
        self._metrics.ended(call.op, size, begun)
        return Done(call.result)

    def _noted(self, work: Work) -> Work:
        if self._pending is not None:
            self._pending.append(work)
        return work

    def _several(self, works: list[_c10d.Work], result: Any) -> _c10d.Work:
        """One work out of those of a call's parts."""
        if len(works) == 1:
            return works[0]
        if all(isinstance(w, Done) for w in works):
            return Done(result)
        return Work(Several(works), result, turns=turns.together(works))

    # -- what is refused

    def _misuse(self, op: str, words: str) -> MisuseError:
        """A mistake of this rank in a call of `op`."""
        return MisuseError(f"rank {self._rank}: {words}", self._rank, op)

    def _named(self, e: Error) -> Error:
        """The same error; the words of a broken rule also name the rank, and those of a limit how torch sets it."""
        if isinstance(e, LimitPassed):
            return with_timeout(e)
        if isinstance(e, MisuseError) and not str(e).startswith("rank "):
            return MisuseError(f"rank {self._rank}: {e}", self._rank, e.call, e.cause)
        return e

    def _one(self, items: Sequence[Any], op: str) -> Any:
        if len(items) != 1:
            raise self._misuse(op, f"{op} takes one tensor per call, not {len(items)}")
        return items[0]

    def _check(self, op: str, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            check(tensor, op, self._rank)

    def _check_parts(self, parts: Sequence[Any], op: str, what: str) -> None:
        """There must be as many as ranks."""
        if len(parts) != self._size:
            words = f"{op} needs {self._size} {what}, one per rank, not {len(parts)}"
            raise self._misuse(op, words)

    def _check_times(self, op: str, what: str, large: torch.Tensor, other: str, small: torch.Tensor) -> None:
        """The large tensor must have as many elements as the small ones of all ranks."""
        if large.numel() != self._size * small.numel():
            words = f"the {what} has {large.numel()} elements, not {self._size} times the {small.numel()} of the {other}"
            raise self._misuse(op, f"{op}: {words}")


def all_of(after: Sequence[Finish]) -> Finish | None:
    """One thing to do out of several, in the mode that this thread is in now."""
    if not after:
        return None

    def run() -> None:
        for finish in after:
            finish()

    return in_this_mode(run)
