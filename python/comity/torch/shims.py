"""What torch 2.14 and newer do not pass on from a `Work` made in Python.

Calls through torch's dispatcher return a C++ holder around our `Work` that passes on `wait` and `get_future` only: `is_completed` is
False for ever, and a receive from any rank does not say from which. The holder's future knows; these methods ask it. Works of other
backends are of the same class in Python, and their futures may be done long before their calls: for those torch's answer stands.
"""

from __future__ import annotations

import threading
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
        future.wait()
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
    completed, source, success, failed, result = (
        work.is_completed, work._source_rank, work.is_success, work.exception, work.result
    )  # fmt: skip

    def held(self: Any) -> bool:
        """Whether it is a holder, which cannot answer."""
        return type(self) is work and self._get_op_type() == _UNKNOWN and not completed(self)

    def ended(self: Any) -> Any:
        """Its future, if that is done."""
        try:
            f = self.get_future() if held(self) else None
        except RuntimeError:
            return None
        return f if f is not None and f.done() else None

    def is_completed(self: Any) -> bool:
        return completed(self) or bool((f := ended(self)) and _passed(f))

    def exception(self: Any) -> Any:
        if f := ended(self):
            try:
                f.value()
            except Exception as e:
                return e
        return failed(self)

    def is_success(self: Any) -> bool:
        if held(self):
            return self.is_completed() and self.exception() is None
        return success(self)

    def of(self: Any) -> Any:
        return f.value() if (f := ended(self)) else None

    def results(self: Any) -> Any:
        value = of(self)
        return list(value) if isinstance(value, (list, tuple)) else result(self)

    def source_rank(self: Any) -> int:
        value = of(self)
        if isinstance(value, (list, tuple)) and len(value) == 1 and hasattr(value[0], "data_ptr"):
            with _lock:
                found = _sources.pop(value[0].data_ptr(), None)
            if found is not None:
                return found
        return source(self)

    work.is_completed, work.is_success, work.exception, work.result = (
        is_completed,
        is_success,
        exception,
        results,
    )
    work._source_rank = work.source_rank = source_rank
