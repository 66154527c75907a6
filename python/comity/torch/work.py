"""What an asynchronous call returns: torch's `Work`, over a request of the core."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C import _distributed_c10d as _c10d

from .callbacks import when_done
from .tensors import Finish


class Request(Protocol):
    """Work under way: of the core, of the mailbox, or several at once."""

    def wait(self, timeout: float | None = None) -> None: ...
    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def add_done_callback(self, callback: Callable[[BaseException | None], Any]) -> None: ...


def seconds(timeout: timedelta | float | None) -> float | None:
    """A limit as torch gives it; None for torch's ways to say that there is none."""
    if timeout is None:
        return None
    s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return s if s > 0 else None


class Several:
    """Requests that end together."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    def wait(self, timeout: float | None = None) -> None:
        for r in self._requests:
            r.wait(timeout)

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


class Work(_c10d.Work):
    """A call under way. `wait` blocks without the interpreter's lock."""

    def __init__(
        self,
        request: Request,
        result: Any,
        finish: Finish | None = None,
        ended: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        super().__init__()
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
            if self._request.done():
                self._end(e)
            raise
        self._end(None)
        if self._flaw is not None:
            raise self._flaw
        return True

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
            # `set_exception` stores a value as far as C++ can see; only what a callback raises is an error there.
            base = torch.futures.Future()
            self._future = base.then(value)

        def done(error: BaseException | None) -> None:
            self._end(error)
            error = error or self._flaw
            if error is not None:
                base.set_exception(error)
            else:
                base.set_result(self._result)

        when_done(self._request, done)
        return self._future

    def is_completed(self) -> bool:
        if not self._request.done():
            return False
        self._end(self._request.exception())
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return (self._request.exception() or self._flaw) if self._request.done() else None

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

    is_success = is_completed

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
