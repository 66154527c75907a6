"""Sends and receives under way, with their limits."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from comity._core import post
from comity.errors import TimeoutError as LimitPassed

from . import deadlines


class Pending:
    """A send or receive under way: a request as `work.py` takes it. `limit`: seconds that it may take; `rank`: the other one, if it is
    known, for errors."""

    def __init__(
        self, call: str, limit: float, rank: int | None, cancel: Callable[[Pending], None] | None = None
    ) -> None:
        self.call = call
        self.source = -1
        self._until = time.monotonic() + limit
        self._limit = limit
        self._rank = rank
        #: Takes it from where it waits.
        self._cancel = cancel
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._ended = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[BaseException | None], Any]] = []
        self._deadline = False

    def end(self, error: BaseException | None = None) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended, self._error = True, error
            callbacks, self._callbacks = self._callbacks, []
            event, deadline = self._event, self._deadline
        if event is not None:
            event.set()
        if deadline:
            deadlines.remove(self)
        # Not here: this may be the thread that reads what a callback waits for, and it may hold the mailbox's lock.
        for callback in callbacks:
            post(functools.partial(callback, error))

    def wait(self, timeout: float | None = None) -> None:
        with self._lock:
            ended = self._ended
            if not ended and self._event is None:
                self._event = threading.Event()
        if not ended:
            left = self._until - time.monotonic()
            mine = timeout is not None and timeout < left
            # A wait with a limit lets the main thread see signals.
            if not self._event.wait(max(timeout if mine else left, 0)):
                if mine:
                    words = (
                        f"{self.call} is still under way after {timeout} s; wait again, or abort the group"
                    )
                    raise LimitPassed(words, self._rank, self.call, None)
                self.late()
        if self._error is not None:
            raise self._error

    def late(self) -> None:
        """Its limit has passed."""
        words = (
            f"{self.call} did not finish within {self._limit:g} s; did the other rank make the matching call?"
        )
        error = LimitPassed(words, self._rank, self.call, f"not finished within {self._limit:g} s")
        if self._cancel is not None:
            self._cancel(self)
        self.end(error)

    def done(self) -> bool:
        return self._ended

    def exception(self) -> BaseException | None:
        return self._error

    def add_done_callback(self, callback: Callable[[BaseException | None], Any]) -> None:
        with self._lock:
            if not self._ended:
                self._callbacks.append(callback)
                if not self._deadline:
                    # The callback is to come also where nobody waits.
                    self._deadline = True
                    deadlines.add(self, self._until)
                return
        callback(self._error)


class Receive(Pending):
    """A posted receive and where its bytes go."""

    def __init__(self, source: int | None, tag: int, t: torch.Tensor, *rest: Any) -> None:
        super().__init__(*rest)
        self.wants = source
        self.tag = tag
        self.tensor = t
