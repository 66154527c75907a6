"""The future of a collective's work, whose callbacks take turns (`turns.py`).

It is torch's future, but for `then` and `add_done_callback`, which never wait: a callback given to a future that is done runs at once in
the thread that gives it if those given before it have ended, and else on a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from . import callbacks
from .turns import Turn, Turns

_log = logging.getLogger("comity.torch")
_Base = torch.futures.Future


class Future(_Base):
    """See the module."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self._lock = threading.Lock()
        self._jobs: list[Callable[[], None]] | None = []

    def set_result(self, result: Any) -> None:
        super().set_result(result)
        with self._lock:
            jobs, self._jobs = self._jobs or [], None
        # One may wait for what another does: each but the last has a thread of its own.
        for job in jobs[:-1]:
            callbacks.soon(job)
        for job in jobs[-1:]:
            job()

    def set_exception(self, result: BaseException) -> None:
        def failed(_: Any) -> NoReturn:
            raise result

        self._set_unwrap_func(failed)
        self.set_result(_Failure(result))

    def then(self, callback: Callable[[Any], Any]) -> Future:
        out = Future(self._turns)

        def job() -> None:
            try:
                value = run(self)
            except BaseException as e:
                out.set_exception(e)
            else:
                out.set_result(value)

        run = self._turns.ordered(callback)
        self._give(run, job)
        return out

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        def job() -> None:
            try:
                run(self)
            except Exception:
                _log.exception("a callback of a future failed")

        run = self._turns.ordered(callback)
        self._give(run, job)

    def _give(self, run: Turn, job: Callable[[], None]) -> None:
        with self._lock:
            if self._jobs is not None:
                self._jobs.append(job)
                return
        if run.is_next():
            job()
        else:
            callbacks.soon(job)


class _Failure:
    """Value of a future that failed, which torch's C++ takes for a result: looking into it raises the error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def _raise(self, *_: Any) -> NoReturn:
        raise self._error

    __reduce_ex__ = __reduce__ = __str__ = __repr__ = __len__ = __iter__ = __getitem__ = _raise
