"""Messages from one other rank to this one."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from comity._core import Args
from comity.errors import Error, MismatchError

from .messages import EVER, FRAME, TYPES, U8, about, leave, of_call, read_frame, type_number, view
from .pending import Receive

if TYPE_CHECKING:
    from .mailbox import Mailbox

#: From the sender, which is rank 0 of the direction's group, whenever it comes.
_ANY_TIME = Args(peer=0, timeout=EVER)
#: Bytes of messages that nobody receives yet, per sender.
_KEPT = 256 << 20


class Inbox:
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

    def kept_for(self, receive: Receive) -> bool:
        """Whether a message for it is here already; it then has ended. With the mailbox's lock held."""
        for i, (tag, number, data) in enumerate(self._kept):
            if tag == receive.tag:
                del self._kept[i]
                self._held -= data.numel()
                self._give(receive, number, data)
                self._mail.posted().notify_all()
                return True
        return False

    def _give(self, receive: Receive, number: int, data: torch.Tensor) -> None:
        """A whole message to its receive."""
        receive.source = self._source
        error = self._differs(receive, number, data.numel())
        if error is None and data.numel():
            # As the bytes of any other message, which come without torch: it may be a tensor of inference mode.
            with torch.inference_mode():
                view(receive.tensor).copy_(data)
        receive.end(error)

    def _differs(self, receive: Receive, number: int, size: int) -> Error | None:
        t = receive.tensor
        if type_number(t.dtype) == number and t.numel() * t.element_size() == size:
            return None
        kind = TYPES[number] if number < len(TYPES) else "another type"
        cause = f"rank {self._source} sent {size} bytes of {kind}"
        return MismatchError(
            f"rank {self._mail.rank}: {receive.call}: {cause}", self._source, receive.call, cause
        )

    def _serve(self) -> None:
        try:
            self._pair = self._mail.pair(self._source, self._mail.rank)
            if self._closed is not None:
                leave(self._pair, self._closed)
            while True:
                self._message()
        except Error as e:
            self.ended = about(e, self._source, self._mail.rank)
            self._mail.lost(self._source, self.ended)

    def _message(self) -> None:
        """Take one message from the link."""
        frame = torch.empty(FRAME, dtype=torch.uint8)
        self._read(frame, EVER)
        tag, number, size, few = read_frame(frame)
        with self._mail.posted() as lock:
            receive = self._wanted(lock, tag, size)
            if receive is None and self._mail.ended() and not self._has_room(size):
                return
            if few is not None:
                if receive is None:
                    self._keep(tag, number, few)
                else:
                    self._give(receive, number, few)
                return
        if receive is not None and self._differs(receive, number, size) is None:
            self._read_into(receive)
            return
        data = torch.empty(size, dtype=torch.uint8)
        self._read(data, self._mail.limit)
        if receive is not None:
            self._give(receive, number, data)
            return
        with self._mail.posted():
            # One may have been posted meanwhile.
            receive = self._mail.match(self._source, tag)
            if receive is None:
                self._keep(tag, number, data)
        if receive is not None:
            self._give(receive, number, data)

    def _wanted(self, lock: threading.Condition, tag: int, size: int) -> Receive | None:
        """The receive for such a message, if one is posted; waits for it where there is no room to keep more. With the mailbox's lock
        held."""
        # The sender gives the rest up after its limit. Nobody looks at the link meanwhile, so after as long it is read all the
        # same, and says why where it has failed.
        until = time.monotonic() + self._mail.limit
        while (receive := self._mail.match(self._source, tag)) is None:
            left = until - time.monotonic()
            if self._has_room(size) or self._mail.ended() or left <= 0:
                break
            lock.wait(left)
        return receive

    def _read_into(self, receive: Receive) -> None:
        """The bytes of its message, from the link to where they go."""
        receive.source = self._source
        try:
            self._read(view(receive.tensor), self._mail.limit)
        except Error as e:
            receive.end(of_call(about(e, self._source, self._mail.rank), receive.call))
            raise
        receive.end()

    def _read(self, into: torch.Tensor, limit: float) -> None:
        args = _ANY_TIME if limit == EVER else Args(peer=0, timeout=limit)
        self._pair.run("recv", None, (into.data_ptr(), U8, into.numel()), args)

    def _has_room(self, size: int) -> bool:
        """Whether a message of so many bytes can be kept for a receive that comes later; one alone always can."""
        return not self._held or self._held + size <= _KEPT

    def _keep(self, tag: int, number: int, data: torch.Tensor) -> None:
        self._kept.append((tag, number, data))
        self._held += data.numel()

    def close(self, why: Error) -> None:
        self._closed = why
        if self._pair is not None:
            leave(self._pair, why)
