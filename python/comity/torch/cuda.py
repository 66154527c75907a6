"""CUDA tensors: a group of the core over NCCL beside the one for host memory, and calls in the order of streams.

The group is made by the first call on CUDA tensors, which all ranks make. A call that its caller waits for goes on the caller's stream;
others go on a stream of their own behind what the caller's holds so far, and `Work.wait` has the caller's stream wait for them, not the
processor: it returns when the call is on its stream, which takes all ranks to have made it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._dynamo import eval_frame

from comity import _core

from .callbacks import when_done
from .tensors import Finish
from .work import Request, Several, Work, value

Event = _core.Event
#: The current stream of a device as a number; many times as fast as by way of a `Stream`.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
#: What torch.compile has set to look at each function that runs; None where it is not at work.
_compiling = getattr(eval_frame, "get_eval_frame_callback", None)
#: A device's number and a stream, as `comity._core` takes them.
Place = tuple[int, int]
#: A moment in which a call in the background mostly comes on its stream, if the other ranks are in step: seconds. Looking that long is
#: cheaper than having another thread come back.
_MOMENT = 50e-6


class Lane:
    """One device's group, and its stream for calls in the background."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group = group
        self.device = device
        self._index = device.index
        #: The last call in the background.
        self.last: Any = None
        self.stream = torch.cuda.Stream(device)
        #: Where futures get their events: behind one call, not behind all that are on `stream` by then.
        self.echo = torch.cuda.Stream(device)
        self._entry = _core.Event(device.index)
        self._background = (device.index, self.stream.cuda_stream)

    def here(self) -> Place:
        """On the caller's stream."""
        return self._index, self.current()

    def current(self) -> int:
        """The caller's stream."""
        return _raw_stream(self._index)

    def behind(self, tensors: Iterable[torch.Tensor]) -> Place:
        """On the lane's stream, behind what the caller's holds. The tensors' memory is not given to others before the stream has come
        past what comes now."""
        self._entry.set(self.current())
        self._entry.hold(self._background[1])
        for t in tensors:
            t.record_stream(self.stream)
        return self._background

    def drain(self, limit: float) -> None:
        """Wait until the streams have done what they hold, so long at most."""
        until = time.monotonic() + limit
        try:
            events = [s.record_event() for s in (self.stream, torch.cuda.current_stream(self.device))]
            while not all(e.query() for e in events) and time.monotonic() < until:
                time.sleep(0.0005)
        except RuntimeError:  # the device has failed; its own error was raised where it was noticed
            return


class CudaWork(Work):
    """A call under way on a lane's stream."""

    def __init__(
        self,
        request: Request,
        result: Any,
        finish: Finish | None,
        ended: Callable[[BaseException | None], None] | None,
        lane: Lane,
        event: _core.Event,
    ) -> None:
        self._lane = lane
        self._event = event
        super().__init__(request, result, finish and self._behind(finish), ended)

    def _behind(self, finish: Finish) -> Finish:
        def run() -> None:
            with torch.cuda.stream(self._lane.stream):
                finish()
                self._event.set(self._lane.stream.cuda_stream)

        return run

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        self._request.settles(_MOMENT)
        super().wait(timeout)
        self._event.hold(self._lane.current())
        return True

    def is_completed(self) -> bool:
        return super().is_completed() and self._event.passed()

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
        if self._request.settles(_MOMENT) and self._request.exception() is None:
            return self._set_future()
        return self._future_for_later()

    def _set_future(self) -> torch.futures.Future:
        """A future that has its result, with events behind the call."""
        self._end(None)
        if self._flaw is not None:
            return self._future_for_later()
        future = torch.futures.Future(devices=[self._lane.device])
        self._complete(future)
        with self._lock:
            self._future = self._future or future
        return self._future

    def _future_for_later(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
            base = torch.futures.Future(devices=[self._lane.device])
            # What a callback raises is an error for C++; see `Work.get_future`.
            self._future = base.then(value)

        def done(error: BaseException | None) -> None:
            self._end(error)
            error = error or self._flaw
            if error is not None:
                base.set_exception(error)
            else:
                self._complete(base)

        when_done(self._request, done)
        return self._future

    def _complete(self, future: torch.futures.Future) -> None:
        """Set the result. A future takes its events from the current stream."""
        lane = self._lane
        self._event.hold(lane.echo.cuda_stream)
        before = torch._C._cuda_getCurrentStream(lane.device.index)
        _set_stream(lane.echo.stream_id, lane.echo.device_index, lane.echo.device_type)
        try:
            future.set_result(self._result)
        finally:
            _set_stream(*before)


def together(works: Sequence[Any], result: Any) -> CudaWork | None:
    """One work out of several of which some are on a lane's stream; None if none is. The stream keeps their order, so the last one's
    event comes after all."""
    last = next((w for w in reversed(works) if isinstance(w, CudaWork)), None)
    return last and CudaWork(Several(works), result, None, None, last._lane, last._event)


def _set_stream(stream: int, device: int, kind: int) -> None:
    """As `torch.cuda.set_stream`, at a tenth of the time."""
    torch._C._cuda_setStream(stream_id=stream, device_index=device, device_type=kind)


def tensors_of(*nested: Any) -> list[torch.Tensor]:
    """The CUDA tensors in what a call keeps, whatever lists they are in."""
    if len(nested) == 1 and isinstance(nested[0], torch.Tensor):
        return [nested[0]] if nested[0].is_cuda else []
    found: list[torch.Tensor] = []
    for item in nested:
        if isinstance(item, torch.Tensor):
            if item.is_cuda:
                found.append(item)
        elif isinstance(item, Sequence):
            found.extend(tensors_of(*item))
    return found


def untraced(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, not to be looked into by torch.compile, which would take streams for part of the model, where that is at work."""
    if _compiling is None or _compiling() is None:
        return f
    return sys.modules["torch._dynamo"].disable(f)


def settle(device: torch.device) -> None:
    """Wait until the caller's stream has done what it holds, as a barrier among devices does."""
    torch.cuda.current_stream(device).synchronize()
