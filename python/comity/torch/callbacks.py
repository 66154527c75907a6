"""Callbacks on threads that nothing else waits for, counted, so that the end of the process can wait for them."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

#: How long a thread waits for the next job before it ends: seconds.
_IDLE = 10.0

_lock = threading.Lock()
_count = 0


def running() -> int:
    """How many callbacks are yet to end."""
    return _count


def when_done(request: Any, callback: Callable[[BaseException | None], Any]) -> None:
    """Call `callback` with the request's error or None when it has ended."""
    global _count  # noqa: PLW0603
    with _lock:
        _count += 1

    def counted(error: BaseException | None) -> None:
        global _count  # noqa: PLW0603
        try:
            callback(error)
        finally:
            with _lock:
                _count -= 1

    request.add_done_callback(counted)


class _Pool:
    """As the core's own threads for callbacks (`callbacks.rs`): a callback may wait for a later message or call, so whenever no thread is
    idle, one more starts."""

    def __init__(self) -> None:
        self._came = threading.Condition()
        self._jobs: deque[Callable[[], Any]] = deque()
        self._idle = 0

    def post(self, job: Callable[[], Any]) -> None:
        with self._came:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._came.notify()
                return
        try:
            threading.Thread(target=self._serve, name="comity-call", daemon=True).start()
        except RuntimeError:
            # No thread is to be had, or the interpreter ends. Late, on this one, is better than never.
            with self._came:
                job = self._jobs.pop() if self._jobs else lambda: None
            _run(job)

    def _serve(self) -> None:
        while True:
            with self._came:
                while not self._jobs:
                    self._idle += 1
                    came = self._came.wait(_IDLE)
                    self._idle -= 1
                    if not came and not self._jobs:
                        return
                job = self._jobs.popleft()
            _run(job)
            # What it holds is not kept until the next one comes.
            del job


def _run(job: Callable[[], Any]) -> None:
    try:
        job()
    except Exception:
        sys.excepthook(*sys.exc_info())


_pool = _Pool()


def _forked() -> None:
    """The parent's threads are not here."""
    global _pool, _lock, _count
    _pool, _lock, _count = _Pool(), threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def post(job: Callable[[], Any]) -> None:
    """Run `job` soon, on a thread that nothing else waits for."""
    _pool.post(job)
