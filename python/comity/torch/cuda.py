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

from .callbacks import when_done
from .tensors import Finish
from .work import Request, Work, value

#: The current stream of a device as a number; many times as fast as by way of a `Stream`.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
#: What torch.compile has set to look at each function that runs; None where it is not at work.
_compiling = getattr(eval_frame, "get_eval_frame_callback", None)
#: A device's number, a stream, and an event to set behind the call or 0, as `comity._core` takes them.
Place = tuple[int, int, int]


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

    def here(self) -> Place:
        """On the caller's stream."""
        return self._index, _raw_stream(self._index), 0

    def drain(self, limit: float) -> None:
        """Wait until the streams have done what they hold, so long at most."""
        until = time.monotonic() + limit
        try:
            events = [s.record_event() for s in (self.stream, torch.cuda.current_stream(self.device))]
            while not all(e.query() for e in events) and time.monotonic() < until:
                time.sleep(0.0005)
        except RuntimeError:  # the device has failed; its own error was raised where it was noticed
            return

    def behind(self, tensors: Iterable[torch.Tensor]) -> tuple[Place, torch.cuda.Event]:
        """On the lane's stream, behind what the caller's holds; the event will stand for the call. The tensors' memory is not given
        to others before the stream has come past it."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        event = torch.cuda.Event()
        # Makes the event; the core sets it again behind the call.
        event.record(self.stream)
        for t in tensors:
            t.record_stream(self.stream)
        return (self.device.index, self.stream.cuda_stream, event.cuda_event), event


class CudaWork(Work):
    """A call under way on a lane's stream."""

    def __init__(
        self,
        request: Request,
        result: Any,
        finish: Finish | None,
        ended: Callable[[BaseException | None], None] | None,
        lane: Lane,
        event: torch.cuda.Event,
    ) -> None:
        self._lane = lane
        self._event = event
        super().__init__(request, result, finish and self._behind(finish), ended)

    def _behind(self, finish: Finish) -> Finish:
        def run() -> None:
            with torch.cuda.stream(self._lane.stream):
                finish()
                self._event.record(self._lane.stream)

        return run

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        super().wait(timeout)
        torch.cuda.current_stream(self._lane.device).wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        return super().is_completed() and self._event.query()

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
            base = torch.futures.Future(devices=[self._lane.device])
            self._future = base.then(value)

        def done(error: BaseException | None) -> None:
            self._end(error)
            error = error or self._flaw
            if error is not None:
                base.set_exception(error)
                return
            self._lane.echo.wait_event(self._event)
            with torch.cuda.stream(self._lane.echo):
                base.set_result(self._result)

        when_done(self._request, done)
        return self._future


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
