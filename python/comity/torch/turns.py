"""Calls that are made in callbacks of works: in one order on all ranks.

A work may end on one rank before the next call is made there, and on another after it. If its callback makes a call, that call would come
at another place among the group's calls on each rank. So each group has one more group of the core, a channel, for calls made in
callbacks; the calls of the channel have the order of their callbacks, and those run one after the other in the order in which they
were given to futures, which is that of the program. Where such a call has a callback that makes calls, these have a channel again::

    program      all_reduce 1 .then(a)   all_reduce 2 .then(b)   all_reduce 3      channel 0
    callbacks             a: all_reduce 4, broadcast 5   then   b: all_reduce 6    channel 1

A callback given to a future that is done runs at once, in the thread that gives it: it counts as the others, and waits for its turn.
Futures of sends and receives have no turns, for those are not the same on all ranks.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from . import metrics

#: Callbacks of calls made in callbacks and so on share a channel from this depth on.
_DEEPEST = 8

Callback = Callable[[Any], Any]


class _Here(threading.local):
    """What this thread is doing."""

    def __init__(self) -> None:
        #: Whose callbacks it runs; the innermost is the last.
        self.within: list[Turns] = []
        #: Those of the work that was last asked for its future.
        self.asked: Turns | None = None


_here = _Here()
#: The turns that the callbacks of a future take.
_of: WeakKeyDictionary[Any, Turns] = WeakKeyDictionary()


class Turns:
    """The callbacks of one channel's works, in the order in which they were given."""

    def __init__(self, path: tuple[str, ...], limit: Callable[[], float]) -> None:
        self.path = path
        self._limit = limit
        self._changed = threading.Condition()
        #: The first that has not ended; those behind it that have; how many were given.
        self._first, self._ended, self._given = 0, set[int](), 0

    def ordered(self, callback: Callback) -> tuple[Callback, Callable[[], None]]:
        """The callback with a turn, and what gives the turn up."""
        with self._changed:
            mine, self._given = self._given, self._given + 1

        def run(future: Any) -> Any:
            try:
                # One that is given by one that runs, to a future that is done, is a part of that one.
                if self not in _here.within:
                    self._enter(mine)
                _here.within.append(self)
                try:
                    return callback(future)
                finally:
                    _here.within.pop()
            finally:
                leave()

        def leave() -> None:
            with self._changed:
                self._ended.add(mine)
                while self._first in self._ended:
                    self._ended.remove(self._first)
                    self._first += 1
                self._changed.notify_all()

        return run, leave

    def _enter(self, mine: int) -> None:
        until = time.monotonic() + self._limit()
        with self._changed:
            while self._first < mine and (left := until - time.monotonic()) > 0:
                # Behind the limit it runs out of turn: one before it that waits for it would wait for ever.
                self._changed.wait(left)


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
        """The one for a call made here."""
        if not _here.within or self._main.group.size == 1:
            return self._main
        path = _here.within[-1].path
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


def asked(turns: Turns | None, future: Any) -> Any:
    """The future of a work with these turns, or without."""
    _here.asked = turns
    return _marked(future, turns)


def together(works: Sequence[Any]) -> Turns | None:
    """The turns of a work that consists of these."""
    turns = {getattr(w, "turns", None) for w in works}
    return turns.pop() if len(turns) == 1 else None


def _marked(future: Any, turns: Turns | None) -> Any:
    if turns is not None:
        _of[future] = turns
    return future


_lock = threading.Lock()
_installed = False


def install(work: Any) -> None:
    """Have futures of the works of this package take turns, once. `work`: torch's class of works, if torch gives out its own in place of
    ours."""
    global _installed  # noqa: PLW0603
    with _lock:
        if _installed:
            return
        _installed = True
    future = torch._C.Future
    future.then = _taking_turns(future.then)
    future.add_done_callback = _taking_turns(future.add_done_callback)
    collect = torch._C._collect_all

    def collected(futures: list[Any]) -> Any:
        return _marked(collect(futures), next((t for f in futures if (t := _of.get(f))), None))

    torch._C._collect_all = collected
    if work is None:
        return
    get_future = work.get_future

    def noted(self: Any) -> Any:
        # Torch's work asks ours in this thread.
        _here.asked = None
        f = get_future(self)
        return _marked(f, _here.asked)

    work.get_future = noted


def _taking_turns(method: Callable[[Any, Callback], Any]) -> Callable[[Any, Callback], Any]:
    """`then` or `add_done_callback` of torch's futures."""

    def give(self: Any, callback: Callback) -> Any:
        turns = _of.get(self)
        if turns is None:
            return method(self, callback)
        run, leave = turns.ordered(callback)
        try:
            made = method(self, run)
        except BaseException:
            leave()
            raise
        return made if made is None else _marked(made, turns)

    return give
