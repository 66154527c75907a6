"""Messages from this rank to one other."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from comity._core import Args
from comity.errors import Error, GroupClosedError
from comity.errors import TimeoutError as LimitPassed

from .messages import EVER, FEW, FRAME, U8, about, frame_of, leave, of_call
from .pending import Pending

if TYPE_CHECKING:
    from .mailbox import Mailbox

#: A send of at most so many bytes is copied and has ended, as long as the receiver's side is not there yet.
_EAGER = 1 << 16
#: To the receiver, which is rank 1 of the direction's group.
_FRAME_ARGS = Args(peer=1, timeout=EVER)


class Outbox:
    """One direction, at its sender. Its thread makes the pair's group, then sends what has queued up."""

    def __init__(self, mail: Mailbox, to: int) -> None:
        self._mail = mail
        self._to = to
        self._pair: Any = None
        self._lock = threading.Condition()
        self._queue: deque[tuple[bytes, torch.Tensor | None, Pending]] = deque()
        self._busy = True
        #: Why the mailbox was closed.
        self._closed: Error | None = None
        self._error: Error | None = None
        #: The message that was sent last, and the send that it is.
        self._last: Any = None
        self._last_call = ""
        threading.Thread(target=self._serve, name=f"comity-send-{to}", daemon=True).start()

    def send(self, tag: int, t: torch.Tensor, call: str) -> Pending:
        """Send now, or when the messages before it are on their way. `call`: the send in words."""
        size = t.numel() * t.element_size()
        few = size <= FEW
        frame = frame_of(tag, t)
        pending = Pending(call, self._mail.limit, self._to)
        with self._lock:
            if self._error is not None:
                raise of_call(self._error, call)
            if not self._busy:
                self._start(frame, None if few else t, pending)
                return pending
            body = None
            if not few:
                # The receiver may come much later: a small send does not wait for it.
                body = t.clone() if size <= _EAGER else t
            self._queue.append((frame, body, pending))
        if size <= _EAGER:
            pending.end()
        return pending

    def _start(self, frame: bytes, body: torch.Tensor | None, pending: Pending) -> None:
        """Send now; the group's own thread does it."""
        try:
            first = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
            given = (first.data_ptr(), U8, FRAME)
            last = self._pair.start("send", given, None, _FRAME_ARGS, hold=first)
            self._last_call = pending.call
            if body is None:
                self._last = last
                pending.end()
                return
            given = (body.data_ptr(), U8, body.numel() * body.element_size())
            args = Args(peer=1, timeout=self._mail.limit)
            self._last = self._pair.start("send", given, None, args, hold=body)
        except Error as e:
            self._sent(e, pending)
            return
        self._last.add_done_callback(lambda e: self._sent(e, pending))

    def _sent(self, error: BaseException | None, pending: Pending) -> None:
        if isinstance(error, Error):
            self._error = about(error, self._to, self._mail.rank)
            error = of_call(self._error, pending.call)
        pending.end(error)

    def _serve(self) -> None:
        try:
            self._pair = self._mail.pair(self._mail.rank, self._to)
        except Error as e:
            with self._lock:
                self._error, queue, self._busy = about(e, self._to, self._mail.rank), list(self._queue), False
                self._queue.clear()
                self._lock.notify_all()
            for _, _, pending in queue:
                pending.end(of_call(self._error, pending.call))
            return
        with self._lock:
            while self._queue and self._closed is None:
                self._start(*self._queue.popleft())
            left = list(self._queue)
            self._queue.clear()
            self._busy = False
            self._lock.notify_all()
        if self._closed is not None:
            # It was closed while the pair's group was made. The receiver, which has its side of it, hears so now.
            leave(self._pair, self._closed)
        for _, _, pending in left:
            pending.end(of_call(self._error, pending.call))

    def flush(self, limit: float) -> list[str]:
        """Give what is under way so many seconds; the sends that then still are, in words."""
        until = time.monotonic() + limit
        with self._lock:
            while self._busy and self._queue and (left := until - time.monotonic()) > 0:
                self._lock.wait(left)
            last, behind = self._last, [pending.call for _, _, pending in self._queue]
        if last is not None and not last.done():
            try:
                last.wait(max(until - time.monotonic(), 1e-3))
            except LimitPassed:
                return [self._last_call, *behind]
            except Error:
                return behind
        return behind

    def close(self, why: Error) -> None:
        with self._lock:
            self._closed = why
            # Else its thread leaves it as soon as it is made.
            pair = None if self._busy else self._pair
            self._error = self._error or GroupClosedError("the group is closed on this rank")
        if pair is not None:
            leave(pair, why)
