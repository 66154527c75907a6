"""Callbacks, counted, so that the end of the process can wait for them. The core's threads run them: `comity._core.post`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from comity import _core

_lock = threading.Lock()
_count = 0


def running() -> int:
    """How many callbacks are yet to end."""
    return _count


def _counted(job: Callable[..., Any]) -> Callable[..., None]:
    """The same, counted from now until it has run once."""
    global _count  # noqa: PLW0603
    with _lock:
        _count += 1

    def run(*args: Any) -> None:
        global _count  # noqa: PLW0603
        try:
            job(*args)
        finally:
            with _lock:
                _count -= 1

    return run


def when_done(request: Any, callback: Callable[[BaseException | None], Any]) -> None:
    """Call `callback` with the request's error or None when it has ended."""
    request.add_done_callback(_counted(callback))


def soon(job: Callable[[], None]) -> None:
    """Run `job` on a thread of its own."""
    _core.post(_counted(job))


def _forked() -> None:
    """The parent's threads are not here."""
    global _lock, _count
    _lock, _count = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
