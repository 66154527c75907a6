"""What is to be done when a limit passes, on one thread of the process; most is taken back before."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol


class Limited(Protocol):
    """Something with a limit."""

    def late(self) -> None:
        """Its limit has passed. Must not wait for anything."""


class _Deadlines:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._until: dict[Limited, float] = {}
        #: When the thread looks next; None while there is none.
        self._next: float | None = None

    def add(self, what: Limited, until: float) -> None:
        """Call `what.late` at this time of `time.monotonic`, unless it is removed before."""
        with self._changed:
            self._until[what] = until
            if self._next is None:
                threading.Thread(target=self._serve, name="comity-limits", daemon=True).start()
                self._next = until
            elif until < self._next:
                self._changed.notify()

    def remove(self, what: Limited) -> None:
        """Its limit no longer matters."""
        # The thread finds out when it looks next.
        with self._changed:
            self._until.pop(what, None)

    def _serve(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                late = [what for what, until in self._until.items() if until <= now]
                for what in late:
                    del self._until[what]
                if not late:
                    self._next = min(self._until.values(), default=None)
                    if self._next is None:
                        return
                    self._changed.wait(self._next - now)
            for what in late:
                what.late()
            # What they hold is not kept until the next one is late.
            late = what = None


_deadlines = _Deadlines()
add, remove = _deadlines.add, _deadlines.remove

if hasattr(os, "register_at_fork"):
    # The parent's thread is not here.
    os.register_at_fork(after_in_child=_deadlines.__init__)
