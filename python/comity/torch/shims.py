"""What torch 2.14 and newer do not pass on from a `Work` made in Python.

Calls through torch's dispatcher return a C++ holder around our `Work` that passes on `wait` and `get_future` only: `is_completed` is
False for ever, and a receive from any rank does not say from which. The holder's future knows; these methods ask it.
"""

from __future__ import annotations

import threading
from typing import Any

from torch._C import _distributed_c10d as _c10d

_installed = False
_lock = threading.Lock()
#: Where a receive from any rank got its message from, by the address of its tensor, until it is asked.
_sources: dict[int, int] = {}


def note_source(address: int, source: int) -> None:
    with _lock:
        _sources[address] = source
        while len(_sources) > 4096:
            del _sources[next(iter(_sources))]


def install() -> None:
    """Fill in the methods, once. Where torch's own answer is better than "not yet" and "unknown", it stands."""
    global _installed  # noqa: PLW0603
    with _lock:
        if _installed:
            return
        _installed = True
    work = _c10d.Work
    completed, source, success, failed, result = (
        work.is_completed, work._source_rank, work.is_success, work.exception, work.result
    )  # fmt: skip

    def future(self: Any) -> Any:
        try:
            return self.get_future() if type(self) is work else None
        except RuntimeError:
            return None

    def is_completed(self: Any) -> bool:
        return completed(self) or bool((f := future(self)) and f.done())

    def exception(self: Any) -> Any:
        if type(self) is work and not completed(self) and (f := future(self)) and f.done():
            try:
                f.value()
            except Exception as e:
                return e
        return failed(self)

    def is_success(self: Any) -> bool:
        if type(self) is work and not completed(self):
            return self.is_completed() and self.exception() is None
        return success(self)

    def of(self: Any) -> Any:
        if type(self) is work and not completed(self) and (f := future(self)) and f.done():
            return f.value()
        return None

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
