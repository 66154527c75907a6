"""The end of communicators on devices, each on a thread of its own: giving one up waits for graphs that hold it, and for torch's watchdog,
which needs the interpreter."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable

#: Seconds that torch's watchdog may take to write of a call that was late. It imports modules for that, and a process that ended meanwhile
#: would crash.
_LAST_WORDS = 30.0
_log = logging.getLogger("comity.torch")


class Ending(threading.Thread):
    """Steps that end a communicator."""

    def __init__(self, name: str, *steps: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._steps = steps
        #: Set when the first step is done: streams wait for the communicator no more.
        self.freed = threading.Event()
        _endings.add(self)
        self.start()

    def run(self) -> None:
        for step in self._steps:
            try:
                step()
            except Exception as e:  # torch has a class of its own for each library
                _log.warning("%s: %s", self.name, e)
            self.freed.set()
        _endings.discard(self)


_endings: set[Ending] = set()


def let_go(limit: float) -> None:
    """Wait for communicators that are being given up, so long at most for each. One that the calls of a graph hold ends with the graph,
    which an error may keep that is only collected now."""
    endings = list(_endings)
    if not all(ending.freed.is_set() for ending in endings):
        gc.collect()
    for ending in endings:
        if ending.freed.wait(limit):
            ending.join(_LAST_WORDS)
