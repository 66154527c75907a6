"""Send and receive as torch means them: any number under way at once, in both directions, beside collectives.

Calls of one group of the core run one at a time, so every direction between two ranks is a group of its own, made when it is first used
(`Group.subgroup`: only the two take part). In it the sender sends frames, each with the message's tag, type and length, and with the
bytes where they are few. A thread of the receiver reads each direction and gives each message to the first receive that wants it,
or keeps it for one that comes later.
"""

from __future__ import annotations

import functools
import re
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from comity import _core
from comity.errors import Aborted, Closed, Error, Mismatch, PeerLost
from comity.errors import TimeoutError as LimitPassed

from .callbacks import post

_U8 = _core.DTYPES["u8"]
_FRAME = 256
_HEAD = struct.Struct("<qHHIQ")  # tag, type, -, -, bytes
_FEW = _FRAME - _HEAD.size
#: A send of at most so many bytes is copied and has ended, as long as the receiver's side is not there yet.
_EAGER = 1 << 16
#: Bytes of messages that nobody receives yet, per sender.
_KEPT = 256 << 20
#: For a thread that waits for whatever comes.
_EVER = 10 * 365 * 86400.0

_TYPES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip
_CODES = {getattr(torch, n): i for i, n in enumerate(_TYPES) if hasattr(torch, n)}


class Pending:
    """A send or receive under way: a request as `work.py` takes it."""

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
        self._timer: threading.Timer | None = None

    def end(self, error: BaseException | None = None) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended, self._error = True, error
            callbacks, self._callbacks = self._callbacks, []
            event, timer = self._event, self._timer
        if event is not None:
            event.set()
        if timer is not None:
            timer.cancel()
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
                self._late()
        if self._error is not None:
            raise self._error

    def _late(self) -> None:
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
                if self._timer is None:
                    self._timer = threading.Timer(max(self._until - time.monotonic(), 0), self._late)
                    self._timer.daemon = True
                    self._timer.start()
                return
        callback(self._error)


class _Receive(Pending):
    """A posted receive and where its bytes go."""

    def __init__(self, source: int | None, tag: int, t: torch.Tensor, *rest: Any) -> None:
        super().__init__(*rest)
        self.wants = source
        self.tag = tag
        self.tensor = t


class Mailbox:
    """All sends and receives of one rank of a group."""

    def __init__(self, group: Any, limit: float) -> None:
        self._group = group
        self._rank, self._size = group.rank, group.size
        self.limit = limit
        self._lock = threading.Condition()
        self._out: dict[int, _Outbox] = {}
        self._in: dict[int, _Inbox] = {}
        self._posted: list[_Receive] = []
        self._ended: Error | None = None

    def send(self, to: int, tag: int, t: torch.Tensor) -> Pending:
        call = f"send {_name(t)} to {to} tag {tag}"
        with self._lock:
            self._check(call)
            box = self._out.get(to)
            if box is None:
                box = self._out[to] = _Outbox(self, to)
        return box.send(tag, t, call)

    def recv(self, source: int | None, tag: int, t: torch.Tensor) -> Pending:
        call = f"recv {_name(t)} from {'any rank' if source is None else source} tag {tag}"
        receive = _Receive(source, tag, t, call, self.limit, source, self._cancel)
        others = [r for r in range(self._size) if r != self._rank] if source is None else [source]
        with self._lock:
            self._check(call)
            for r in others:
                if r not in self._in:
                    self._in[r] = _Inbox(self, r)
            # What came before any receive asked for it, first.
            for r in others:
                if self._in[r].kept_for(receive):
                    return receive
            lost = [e for r in others if (e := self._in[r].ended) is not None]
            if lost and (source is not None or len(lost) == len(others) or any(not _left(e) for e in lost)):
                raise _of_call(lost[0], call)
            self._posted.append(receive)
            self._lock.notify_all()
        return receive

    def _check(self, call: str) -> None:
        if self._ended is not None:
            raise _of_call(self._ended, call)

    def _cancel(self, receive: Pending) -> None:
        with self._lock:
            self._posted = [r for r in self._posted if r is not receive]

    def match(self, source: int, tag: int) -> _Receive | None:
        """The first posted receive for such a message; with the lock held."""
        for i, r in enumerate(self._posted):
            if r.tag == tag and r.wants in (None, source):
                return self._posted.pop(i)
        return None

    def lost(self, source: int, error: Error) -> None:
        """No more comes from this rank."""
        with self._lock:
            all_gone = all(r in self._in and self._in[r].ended for r in range(self._size) if r != self._rank)
            fails = all_gone or not _left(error)
            hit = [r for r in self._posted if r.wants == source or (r.wants is None and fails)]
            self._posted = [r for r in self._posted if r not in hit]
            self._lock.notify_all()
        for r in hit:
            r.end(_of_call(error, r.call))

    def end(self, error: Error, flush: float = 0.0) -> None:
        """No send or receive from now on; sends under way get `flush` seconds."""
        with self._lock:
            if self._ended is not None:
                return
            self._ended = error
            posted, self._posted = self._posted, []
            boxes = [*self._out.values(), *self._in.values()]
            outboxes = list(self._out.values())
            self._lock.notify_all()
        until = time.monotonic() + flush
        for box in outboxes:
            box.flush(max(until - time.monotonic(), 0))
        for box in boxes:
            box.close(error)
        for r in posted:
            r.end(_of_call(error, r.call))

    def ended(self) -> bool:
        return self._ended is not None

    def pair(self, source: int, to: int) -> Any:
        """The group of one direction."""
        return self._group.subgroup([source, to], 0x7032_7000, timeout=_EVER)

    def posted(self) -> threading.Condition:
        return self._lock


class _Outbox:
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
        self._last: Any = None
        threading.Thread(target=self._serve, name=f"comity-send-{to}", daemon=True).start()

    def send(self, tag: int, t: torch.Tensor, call: str) -> Pending:
        size = t.numel() * t.element_size()
        few = size <= _FEW
        frame = _HEAD.pack(tag, _CODES.get(t.dtype, 0xFFFF), 0, 0, size)
        frame += (_bytes(t) if few else b"").ljust(_FEW, b"\0")
        pending = Pending(call, self._mail.limit, self._to)
        with self._lock:
            if self._error is not None:
                raise _of_call(self._error, call)
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
            last = self._pair.start(
                "send", (first.data_ptr(), _U8, _FRAME), None, peer=1, hold=first, timeout=_EVER
            )
            if body is None:
                self._last = last
                pending.end()
                return
            given = (body.data_ptr(), _U8, body.numel() * body.element_size())
            self._last = self._pair.start("send", given, None, peer=1, hold=body, timeout=self._mail.limit)
        except Error as e:
            self._sent(e, pending)
            return
        self._last.add_done_callback(lambda e: self._sent(e, pending))

    def _sent(self, error: BaseException | None, pending: Pending) -> None:
        if isinstance(error, Error):
            self._error = _about(error, self._to)
            error = _of_call(self._error, pending.call)
        pending.end(error)

    def _serve(self) -> None:
        try:
            self._pair = self._mail.pair(self._mail._rank, self._to)
        except Error as e:
            with self._lock:
                self._error, queue, self._busy = _about(e, self._to), list(self._queue), False
                self._queue.clear()
                self._lock.notify_all()
            for _, _, pending in queue:
                pending.end(_of_call(self._error, pending.call))
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
            _leave(self._pair, self._closed)
        for _, _, pending in left:
            pending.end(_of_call(self._error, pending.call))

    def flush(self, limit: float) -> None:
        until = time.monotonic() + limit
        with self._lock:
            while self._busy and self._queue and (left := until - time.monotonic()) > 0:
                self._lock.wait(left)
            last = self._last
        left = until - time.monotonic()
        if last is not None and left > 0:
            try:
                last.wait(left)
            except Error:
                return

    def close(self, why: Error) -> None:
        with self._lock:
            self._closed = why
            # Else its thread leaves it as soon as it is made.
            pair = None if self._busy else self._pair
            self._error = self._error or Closed("the group is closed on this rank")
        if pair is not None:
            _leave(pair, why)


class _Inbox:
    """One direction, at its receiver, read by a thread."""

    def __init__(self, mail: Mailbox, source: int) -> None:
        self._mail = mail
        self._source = source
        self._pair: Any = None
        self._closed: Error | None = None
        #: Why nothing more comes.
        self.ended: Error | None = None
        self._kept: deque[tuple[int, int, torch.Tensor]] = deque()
        self._held = 0
        threading.Thread(target=self._serve, name=f"comity-recv-{source}", daemon=True).start()

    def kept_for(self, receive: _Receive) -> bool:
        """Whether a message for it is here already; it then has ended. With the mailbox's lock held."""
        for i, (tag, code, data) in enumerate(self._kept):
            if tag == receive.tag:
                del self._kept[i]
                self._held -= data.numel()
                self._give(receive, code, data)
                self._mail.posted().notify_all()
                return True
        return False

    def _give(self, receive: _Receive, code: int, data: torch.Tensor) -> None:
        """A whole message to its receive."""
        receive.source = self._source
        error = self._differs(receive, code, data.numel())
        if error is None and data.numel():
            _view(receive.tensor).copy_(data)
        receive.end(error)

    def _differs(self, receive: _Receive, code: int, size: int) -> Error | None:
        t = receive.tensor
        if _CODES.get(t.dtype, 0xFFFF) == code and t.numel() * t.element_size() == size:
            return None
        kind = _TYPES[code] if code < len(_TYPES) else "another type"
        cause = f"rank {self._source} sent {size} bytes of {kind}"
        return Mismatch(
            f"rank {self._mail._rank}: {receive.call}: {cause}", self._source, receive.call, cause
        )

    def _serve(self) -> None:
        try:
            self._pair = self._mail.pair(self._source, self._mail._rank)
            if self._closed is not None:
                _leave(self._pair, self._closed)
            while True:
                self._message()
        except Error as e:
            self.ended = _about(e, self._source)
            self._mail.lost(self._source, self.ended)

    def _message(self) -> None:
        """Take one message from the link."""
        frame = torch.empty(_FRAME, dtype=torch.uint8)
        self._read(frame, _EVER)
        tag, code, _, _, size = _HEAD.unpack_from(memoryview(frame.numpy()))
        few = frame[_HEAD.size : _HEAD.size + size] if size <= _FEW else None
        # The sender gives the rest up after its limit. Nobody looks at the link meanwhile, so after as long it is read all the
        # same, and says why where it has failed.
        until = time.monotonic() + self._mail.limit
        with self._mail.posted() as lock:
            while (
                (receive := self._mail.match(self._source, tag)) is None
                and self._held + size > _KEPT
                and self._held
            ):
                if self._mail.ended():
                    return
                left = until - time.monotonic()
                if left <= 0:
                    break
                lock.wait(left)
            if few is not None:
                if receive is None:
                    self._keep(tag, code, few)
                else:
                    self._give(receive, code, few)
                return
        error = receive and self._differs(receive, code, size)
        if receive is None or error is not None:
            data = torch.empty(size, dtype=torch.uint8)
            self._read(data, self._mail.limit)
            if receive is not None:
                receive.source = self._source
                receive.end(error)
                return
            with self._mail.posted():
                # One may have been posted meanwhile.
                receive = self._mail.match(self._source, tag)
                if receive is None:
                    self._keep(tag, code, data)
            if receive is not None:
                self._give(receive, code, data)
            return
        receive.source = self._source
        try:
            self._read(_view(receive.tensor), self._mail.limit)
        except Error as e:
            receive.end(_of_call(_about(e, self._source), receive.call))
            raise
        receive.end()

    def _read(self, into: torch.Tensor, limit: float) -> None:
        self._pair.run("recv", None, (into.data_ptr(), _U8, into.numel()), peer=0, timeout=limit)

    def _keep(self, tag: int, code: int, data: torch.Tensor) -> None:
        self._kept.append((tag, code, data))
        self._held += data.numel()

    def close(self, why: Error) -> None:
        self._closed = why
        if self._pair is not None:
            _leave(self._pair, why)


def _leave(pair: Any, why: Error) -> None:
    """End one direction, in good order or not."""
    if isinstance(why, Aborted):
        pair.abort(str(why.cause or why))
    else:
        pair.close()


def _view(t: torch.Tensor) -> torch.Tensor:
    """A plain tensor's bytes."""
    return t.detach().reshape(-1).view(torch.uint8)


def _bytes(t: torch.Tensor) -> bytes:
    return _view(t).numpy().tobytes() if t.numel() else b""


def _name(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}[{t.numel()}]"


def _left(e: Error) -> bool:
    """Whether this is about a rank that left in good order."""
    return isinstance(e, Closed) or (isinstance(e, PeerLost) and "left" in str(e.cause))


def _about(e: Error, peer: int) -> Error:
    """The error of a direction, which knows two ranks only, as the group's: it names the peer by its rank there."""
    cause = re.sub(r" \(seen by rank \d+\)", "", e.cause or str(e))
    if isinstance(e, PeerLost):
        return PeerLost(f"rank {peer} {cause}", peer, e.call, cause)
    if isinstance(e, Aborted):
        return Aborted(f"rank {peer} gave up the group: {cause}", peer, e.call, cause)
    if isinstance(e, LimitPassed):
        return LimitPassed(
            f"rank {peer} did not take or give all of it in time ({cause})", peer, e.call, cause
        )
    return e


def _of_call(e: Error, call: str) -> Error:
    """The error that ended a direction as that of a send or receive on it."""
    return type(e)(f"{call}: {e}", e.rank, call, e.cause)
