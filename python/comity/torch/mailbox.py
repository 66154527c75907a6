"""Send and receive as torch means them: any number under way at once, in both directions, beside collectives.

Calls of one group of the core run one at a time, so every direction between two ranks is a group of its own, made when it is first used
(`Group.subgroup`: only the two take part). In it the sender sends frames, each with the message's tag, type and length, and with the
bytes where they are few (`outbox.py`, `messages.py`). A thread of the receiver reads each direction and gives each message to the first
receive that wants it, or keeps it for one that comes later (`inbox.py`).
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from comity.errors import Error

from .inbox import Inbox
from .messages import EVER, left, name_of, of_call
from .outbox import Outbox
from .pending import Pending, Receive


class Mailbox:
    """All sends and receives of one rank of a group."""

    def __init__(self, group: Any, limit: float) -> None:
        self._group = group
        self.rank, self._size = group.rank, group.size
        self.limit = limit
        self._lock = threading.Condition()
        self._out: dict[int, Outbox] = {}
        self._in: dict[int, Inbox] = {}
        self._posted: list[Receive] = []
        self._ended: Error | None = None

    def send(self, to: int, tag: int, t: torch.Tensor) -> Pending:
        call = f"send {name_of(t)} to {to} tag {tag}"
        with self._lock:
            self._check(call)
            box = self._out.get(to)
            if box is None:
                box = self._out[to] = Outbox(self, to)
        return box.send(tag, t, call)

    def recv(self, source: int | None, tag: int, t: torch.Tensor) -> Pending:
        call = f"recv {name_of(t)} from {'any rank' if source is None else source} tag {tag}"
        receive = Receive(source, tag, t, call, self.limit, source, self._cancel)
        others = [r for r in range(self._size) if r != self.rank] if source is None else [source]
        with self._lock:
            self._check(call)
            for r in others:
                if r not in self._in:
                    self._in[r] = Inbox(self, r)
            # What came before any receive asked for it, first.
            for r in others:
                if self._in[r].kept_for(receive):
                    return receive
            lost = [e for r in others if (e := self._in[r].ended) is not None]
            if lost and (source is not None or len(lost) == len(others) or any(not left(e) for e in lost)):
                raise of_call(lost[0], call)
            self._posted.append(receive)
            self._lock.notify_all()
        return receive

    def _check(self, call: str) -> None:
        if self._ended is not None:
            raise of_call(self._ended, call)

    def _cancel(self, receive: Pending) -> None:
        with self._lock:
            self._posted = [r for r in self._posted if r is not receive]

    def match(self, source: int, tag: int) -> Receive | None:
        """The first posted receive for such a message; with the lock held."""
        for i, r in enumerate(self._posted):
            if r.tag == tag and r.wants in (None, source):
                return self._posted.pop(i)
        return None

    def lost(self, source: int, error: Error) -> None:
        """No more comes from this rank."""
        with self._lock:
            all_gone = all(r in self._in and self._in[r].ended for r in range(self._size) if r != self.rank)
            fails = all_gone or not left(error)
            hit = [r for r in self._posted if r.wants == source or (r.wants is None and fails)]
            self._posted = [r for r in self._posted if r not in hit]
            self._lock.notify_all()
        for r in hit:
            r.end(of_call(error, r.call))

    def end(self, error: Error, flush: float = 0.0) -> list[str]:
        """No send or receive from now on; sends under way get `flush` seconds. Those that nobody took by then, in words."""
        with self._lock:
            if self._ended is not None:
                return []
            self._ended = error
            posted, self._posted = self._posted, []
            boxes = [*self._out.values(), *self._in.values()]
            outboxes = list(self._out.values())
            self._lock.notify_all()
        until = time.monotonic() + flush
        left = [call for box in outboxes for call in box.flush(max(until - time.monotonic(), 0))]
        for box in boxes:
            box.close(error)
        for r in posted:
            r.end(of_call(error, r.call))
        return left

    def ended(self) -> bool:
        return self._ended is not None

    def pair(self, source: int, to: int) -> Any:
        """The group of one direction."""
        return self._group.subgroup([source, to], 0x7032_7000, timeout=EVER)

    def posted(self) -> threading.Condition:
        return self._lock
