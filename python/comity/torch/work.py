"""What an asynchronous call returns: torch's `Work`, over a request of the core."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C import _distributed_c10d as _c10d

from comity.errors import TimeoutError as LimitPassed

from .callbacks import when_done
from .futures import Future
from .messages import EVER
from .tensors import Finish
from .turns import Turns


class Request(Protocol):
    """Work under way: of the core, of the mailbox, or several at once."""

    def wait(self, timeout: float | None = None) -> None: ...
    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def add_done_callback(self, callback: Callable[[BaseException | None], Any]) -> None: ...


def seconds(timeout: timedelta | float | None) -> float | None:
    """A limit as torch gives it, EVER at most; None for torch's ways to say that there is none."""
    if timeout is None:
        return None
    s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return min(s, EVER) if s > 0 else None


def with_timeout(e: LimitPassed) -> LimitPassed:
    """The error of a call that ran out of time, with torch's word for that, which programs look for."""
    words = f"{e}; the timeout of a call is that of its group, which init_process_group and new_group take"
    return e if " timeout " in str(e) else LimitPassed(words, e.rank, e.call, e.cause)


class Several:
    """Requests that end together: of the core, of the mailbox, or works over them, whose outputs then are complete as well."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    def wait(self, timeout: float | None = None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        for r in self._requests:
            while True:
                # What is left of the one limit; a wait without any is none.
                left = None if until is None or r.done() else max(until - time.monotonic(), 1e-6)
                try:
                    r.wait(left)
                except LimitPassed as e:
                    if left is None:
                        raise
                    if r.done():
                        continue
                    words = f"{e.call} is still under way after {timeout:g} s; the group is unharmed: wait again, or abort it"
                    raise LimitPassed(words, e.rank, e.call, e.cause) from None
                break

    def done(self) -> bool:
        return all(r.done() for r in self._requests)

    def exception(self) -> BaseException | None:
        return next((e for r in self._requests if (e := r.exception()) is not None), None)

    def add_done_callback(self, callback: Callable[[BaseException | None], Any]) -> None:
        left = len(self._requests)
        if left == 0:
            callback(None)
            return
        lock, first = threading.Lock(), None

        def one(error: BaseException | None) -> None:
            nonlocal left, first
            with lock:
                left -= 1
                first = first or error
                last = left == 0
            if last:
                callback(first)

        for r in self._requests:
            r.add_done_callback(one)


class Failed:
    """A request that could not be made, as one that has ended with this error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def wait(self, timeout: float | None = None) -> None:
        raise self._error

    def done(self) -> bool:
        return True

    def exception(self) -> BaseException:
        return self._error

    def add_done_callback(self, callback: Callable[[BaseException | None], Any]) -> None:
        callback(self._error)


class Work(_c10d.Work):
    """A call under way. `wait` blocks without the interpreter's lock."""

    def __init__(
        self,
        request: Request,
        result: Any,
        finish: Finish | None = None,
        ended: Callable[[BaseException | None], None] | None = None,
        turns: Turns | None = None,
    ) -> None:
        super().__init__()
        #: Those that callbacks take; None where works are not the same on all ranks.
        self.turns = turns
        self._request = request
        self._result = result
        self._finish = finish
        self._ended = ended
        self._lock = threading.Lock()
        self._future: torch.futures.Future | None = None
        self._flaw: BaseException | None = None
        if finish is not None:
            # Outputs are complete also where nobody waits.
            when_done(request, self._end)

    def _end(self, error: BaseException | None) -> None:
        """What is left to do when the request has ended, once."""
        with self._lock:
            finish, self._finish = self._finish, None
            ended, self._ended = self._ended, None
            if finish is not None and error is None:
                try:
                    finish()
                except Exception as e:  # as in a view that autograd forbids to write
                    self._flaw = error = e
        if ended is not None:
            ended(error)

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        try:
            self._request.wait(seconds(timeout))
        except Exception as e:
            # It may have ended after the limit of this wait, and well: then `e` is not how it ended.
            if self._request.done():
                self._end(self._request.exception())
            if isinstance(e, LimitPassed):
                raise with_timeout(e) from None
            raise
        self._end(None)
        if self._flaw is not None:
            raise self._flaw
        if self._future is not None:
            # Programs count on it that the future is done as well: a callback given to it now runs at once.
            # WAIT: the end of a request that has ended, on a thread for callbacks
            self._future.wait()
        return True

    def synchronize(self) -> None:
        self.wait()  # WAIT: a request, whose call has a deadline, or a `Pending`, which has a limit

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
            if self.turns is not None:
                base = self._future = Future(self.turns)
            else:
                # `set_exception` stores a value as far as C++ can see; only what a callback raises is an error there.
                base = torch.futures.Future()
                self._future = base.then(value)
        self._complete_with(base)
        return self._future

    def _complete_with(self, future: torch.futures.Future) -> None:
        def done(error: BaseException | None) -> None:
            self._end(error)
            error = error or self._flaw
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(self._result)

        when_done(self._request, done)

    def done(self) -> bool:
        """Whether the request has ended; the outputs then are complete."""
        if not self._request.done():
            return False
        self._end(self._request.exception())
        return True

    def is_completed(self) -> bool:
        return self.done()

    def add_done_callback(self, callback: Callable[[BaseException | None], Any]) -> None:
        """As a request's, when the outputs are complete: works are parts of others."""

        def done(error: BaseException | None) -> None:
            self._end(error)
            callback(error or self._flaw)

        self._request.add_done_callback(done)

    def at_end(self, note: Callable[[BaseException | None], Any]) -> None:
        """Have the error or None noted when it has ended, and before a `wait` that sees the end returns."""
        with self._lock:
            ended = self._ended

            def both(error: BaseException | None) -> None:
                if ended is not None:
                    ended(error)
                note(error)

            self._ended = both
        self._request.add_done_callback(self._end)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return (self._request.exception() or self._flaw) if self.done() else None

    def result(self) -> list[torch.Tensor]:
        return list(self._result)

    def source_rank(self) -> int:
        return getattr(self._request, "source", -1)

    _source_rank = source_rank


class Done(_c10d.Work):
    """A call that ended before it returned."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def get_future(self) -> torch.futures.Future:
        future = torch.futures.Future()
        future.set_result(self._result)
        return future

    def is_completed(self) -> bool:
        return True

    done = is_success = is_completed

    def add_done_callback(self, callback: Callable[[BaseException | None], Any]) -> None:
        callback(None)

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return list(self._result)

    def source_rank(self) -> int:
        return -1

    _source_rank = source_rank


def value(future: torch.futures.Future) -> Any:
    """What a future holds; what it failed with is raised here, which C++ sees."""
    return future.value()
