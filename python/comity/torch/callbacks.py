"""Callbacks on the core's threads, counted, so that the end of the process can wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

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
