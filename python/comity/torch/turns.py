"""Calls that are made in callbacks of works: in one order on all ranks.

A work may end on one rank before the next call is made there, and on another after it. If its callback makes a call, that call would come
at another place among the group's calls on each rank. So each group has one more group of the core, a channel, for calls made in
callbacks. A callback that makes a call has it when the callbacks that were given to futures before it have ended, and the order in which
they are given is that of the program. Where such a call has a callback that makes calls, these have a channel again::

    program      all_reduce 1 .then(a)   all_reduce 2 .then(b)   all_reduce 3      channel 0
    callbacks             a: all_reduce 4, broadcast 5   then   b: all_reduce 6    channel 1

A callback begins as soon as its future is done, whatever others do, and one that makes no call waits for no other. So what a callback
does before its first call, others may do beside it, and what it does after that is done in the order given.

Torch's overlapped ZeroRedundancyOptimizer shares more than that: its callback notes a bucket, and later asks how many were noted, before
it sends the bucket's weights. Each of these callbacks makes a call, so it has to wait for its turn anyway, and begins with that
(`_SHARED`).

Futures of sends and receives have no turns, for those are not the same on all ranks. Nor has a future that torch makes of several.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import metrics

#: Callbacks of calls made in callbacks and so on share a channel from this depth on.
_DEEPEST = 8
#: Modules whose callbacks share something before their first call, and always make one.
_SHARED = ("torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook",)

Callback = Callable[[Any], Any]


class _Here(threading.local):
    """What this thread is doing."""

    def __init__(self) -> None:
        #: The callbacks that it runs; the innermost is the last.
        self.within: list[Turn] = []


_here = _Here()


class Turns:
    """The callbacks of one channel's works, in the order in which they were given."""

    def __init__(self, path: tuple[str, ...], limit: Callable[[], float]) -> None:
        self.path = path
        self._limit = limit
        self._changed = threading.Condition()
        #: The first that has not ended; those behind it that have; how many were given.
        self._first, self._ended, self._given = 0, set[int](), 0

    def ordered(self, callback: Callback) -> Turn:
        """The callback with a turn, which it gives up when it ends."""
        with self._changed:
            mine, self._given = self._given, self._given + 1
        return Turn(self, mine, callback)

    def is_next(self, mine: int) -> bool:
        return self._first >= mine

    def enter(self, mine: int) -> None:
        """Wait until all before it have ended, as long as the group's limit."""
        until = time.monotonic() + self._limit()
        with self._changed:
            while self._first < mine and (left := until - time.monotonic()) > 0:
                # Behind the limit it runs out of turn: one before it that waits for it would wait for ever.
                self._changed.wait(left)

    def leave(self, mine: int) -> None:
        with self._changed:
            self._ended.add(mine)
            while self._first in self._ended:
                self._ended.remove(self._first)
                self._first += 1
            self._changed.notify_all()


class Turn:
    """A callback and its place among the others."""

    def __init__(self, turns: Turns, mine: int, callback: Callback) -> None:
        self.turns = turns
        self._mine = mine
        self._callback = callback

    def __call__(self, future: Any) -> Any:
        if getattr(self._callback, "__module__", None) in _SHARED:
            self.enter()
        _here.within.append(self)
        try:
            return self._callback(future)
        finally:
            _here.within.pop()
            self.turns.leave(self._mine)

    def is_next(self) -> bool:
        """Whether all given before it have ended."""
        return self.turns.is_next(self._mine)

    def enter(self) -> None:
        """Wait for its turn to make calls."""
        self.turns.enter(self._mine)


class Channel:
    """A group of the core for some of a group's calls, and the turns of their callbacks."""

    def __init__(self, group: Any, turns: Turns) -> None:
        self.group = group
        self.turns = turns
        #: The call that was started last.
        self.last: Any = None


class Channels:
    """Those of one group of torch."""

    def __init__(self, group: Any, name: str, limit: Callable[[], float]) -> None:
        self._name = name
        self._limit = limit
        self._main = Channel(group, Turns((name,), limit))
        self._more: dict[tuple[str, ...], Channel] = {}

    def here(self) -> Channel:
        """The one for a call made here, when it is the turn of the callback that makes it."""
        if not _here.within:
            return self._main
        turn = _here.within[-1]
        turn.enter()
        if self._main.group.size == 1:
            return self._main
        path = turn.turns.path
        path = (*path, self._name) if len(path) < _DEEPEST else (*path[:-1], self._name)
        return self._more.get(path) or self._make(path)

    def _make(self, path: tuple[str, ...]) -> Channel:
        group = self._main.group
        # The same on all ranks, and not one of those for sends and splits, which are small.
        digest = hashlib.blake2b(repr(path).encode(), digest_size=7).digest()
        label = 1 << 63 | int.from_bytes(digest, "big")
        made = group.subgroup(list(range(group.size)), label, timeout=self._limit())
        metrics.watch(made)
        channel = self._more[path] = Channel(made, Turns(path, self._limit))
        return channel

    def all(self) -> list[Channel]:
        return [self._main, *list(self._more.values())]


def together(works: Sequence[Any]) -> Turns | None:
    """The turns of a work that consists of these."""
    turns = {getattr(w, "turns", None) for w in works}
    return turns.pop() if len(turns) == 1 else None
