"""What torch 2.14 and newer do not pass on from a `Work` made in Python.

Calls through torch's dispatcher return a C++ holder around our `Work` that passes on `wait` and `get_future` only: `is_completed` is
False for ever, and a receive from any rank does not say from which. The holder's future knows; these methods ask it. Works of other
backends are of the same class in Python, and their futures may be done long before their calls: for those torch's answer stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from . import builtin, cuda, turns

#: What torch says of the kind of call of a holder; its own backends say the kind.
_UNKNOWN = 100
_installed = False
_lock = threading.Lock()
#: Where a receive from any rank got its message from, by the address of its tensor, until it is asked.
_sources: dict[int, int] = {}


def note_source(address: int, source: int) -> None:
    with _lock:
        _sources[address] = source
        while len(_sources) > 4096:
            del _sources[next(iter(_sources))]


def _passed(future: Any) -> bool:
    """Whether a future that is done has its result. That of CUDA tensors is done when the call is on its stream, with events behind it."""
    try:
        tensors = cuda.tensors_of(future.value())
    except Exception:
        return True
    if not tensors:
        return True
    # A wait on a future has the current stream wait for its events.
    stream = torch.cuda.Stream(tensors[0].device)
    with torch.cuda.stream(stream):
        future.wait()  # WAIT: none, `done` was asked: it has a value
    return stream.query()


def install() -> None:
    """Fill in the methods, once. Where torch's own answer is better than "not yet" and "unknown", it stands."""
    global _installed  # noqa: PLW0603
    with _lock:
        if _installed:
            return
        _installed = True
    work = _c10d.Work
    turns.install(work)
    builtin.install()
    answers = _Answers(work)
    for name in ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank"):
        setattr(work, name, _method(getattr(answers, name.removeprefix("_"))))


def _method(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function, which Python binds to the work that is asked, as it does not with a method of another object."""

    def method(self: Any) -> Any:
        return answer(self)

    return method


class _Answers:
    """What a work says: what its holder's future knows, else what torch's own methods said before."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._completed, self._success = work.is_completed, work.is_success
        self._exception, self._result, self._source = work.exception, work.result, work._source_rank

    def _is_held(self, work: Any) -> bool:
        """Whether it is a holder, which cannot answer."""
        return type(work) is self._work and work._get_op_type() == _UNKNOWN and not self._completed(work)

    def _ended(self, work: Any) -> Any:
        """Its future, if that is done."""
        try:
            future = work.get_future() if self._is_held(work) else None
        except RuntimeError:
            return None
        return future if future is not None and future.done() else None

    def _value(self, work: Any) -> Any:
        future = self._ended(work)
        return None if future is None else future.value()

    def is_completed(self, work: Any) -> bool:
        return self._completed(work) or bool((future := self._ended(work)) and _passed(future))

    def exception(self, work: Any) -> Any:
        if future := self._ended(work):
            try:
                future.value()
            except Exception as e:
                return e
        return self._exception(work)

    def is_success(self, work: Any) -> bool:
        if self._is_held(work):
            return work.is_completed() and work.exception() is None
        return self._success(work)

    def result(self, work: Any) -> Any:
        value = self._value(work)
        return list(value) if isinstance(value, (list, tuple)) else self._result(work)

    def source_rank(self, work: Any) -> int:
        value = self._value(work)
        if isinstance(value, (list, tuple)) and len(value) == 1 and hasattr(value[0], "data_ptr"):
            with _lock:
                found = _sources.pop(value[0].data_ptr(), None)
            if found is not None:
                return found
        return self._source(work)
