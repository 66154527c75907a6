"""Groups whose members change: torch's `reconfigure` and `shrink`.

A member's handle names it among those that are to form the next group; the program passes handles between its processes as it likes. With
the same handles and a number that was not used before, each member calls `reconfigure`. They meet at torch's store, under that number::

    reconfigure/NUMBER/claimed      the handles, by the rank that is the first now: a number serves once
    reconfigure/NUMBER/...          as at a group's start (`meeting.py`)
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from comity import _core
from comity.errors import AbortedError, Error, GroupClosedError, MisuseError

from .meeting import Meeting
from .work import Done, seconds

#: Whether this torch has it.
KNOWN = hasattr(_c10d, "ReconfigureOptions")
_CLAIMED = "claimed"


class _Claimed(Meeting):
    """The meeting of those that this rank's handles name, and of nobody else."""

    def __init__(self, store: Any, rank: int, name: str, uuid: int, handles: Sequence[str]) -> None:
        super().__init__(store, rank, len(handles), name)
        self._uuid = uuid
        self._claim = hashlib.blake2b("\n".join(handles).encode(), digest_size=16).hexdigest()
        if rank == 0 and store.compare_set(_CLAIMED, "", self._claim).decode() != self._claim:
            raise self._used()
        # A claim with the same handles is this one; if it was made before, they have met, or rank 0 has tried.
        if rank == 0 and self.number > 1:
            raise self._used()

    def get(self, name: str, limit: float) -> str:
        """Wait for rank 0's claim, then for what it posts."""
        begun = time.monotonic()
        while not self._store.check([_CLAIMED]):
            waited = time.monotonic() - begun
            if waited >= limit or _core.is_given_up():
                raise self.absent(waited)
            time.sleep(self.pause(waited))
        if self._store.get(_CLAIMED).decode() != self._claim:
            raise self._used()
        return super().get(name, max(limit - (time.monotonic() - begun), 0.001))

    def _used(self) -> MisuseError:
        words = (
            f"reconfigure: the uuid {self._uuid} was already used, or the ranks gave different handles with it; "
            "give a fresh one on all ranks"
        )
        return MisuseError(words, self._rank, "reconfigure")


class Reconfigurable:
    """A group that is configured anew. `Lifecycle` has the rest."""

    _rank: int
    _size: int
    _limit: float
    _name: str
    _closed: Error | None
    _groups: Callable[[], list[Any]]
    _meet: Callable[..., Any]
    _use: Callable[[Any], None]

    #: Number of the configuration; -1 before the first.
    _uuid = -1
    #: True for a group that was made to be configured, and for one that was.
    _revocable = False
    #: Number of groups that were shrunk out of this one.
    _shrunk = 0

    def _wait_to_be_configured(self) -> None:
        """Nobody is met before the first `reconfigure`."""
        self._revocable = True
        self._closed = GroupClosedError(
            "the process group is not configured yet; call reconfigure on all members"
        )

    def get_reconfigure_handle(self) -> str:
        """This member, among those that are to form the next group. Another one after each `reconfigure`."""
        nonce = self.__dict__.setdefault("_nonce", secrets.token_hex(8))
        return f"comity:{self._rank}:{self._uuid}:{nonce}"

    def reconfigure(self, opts: Any) -> Done:
        """Form the group of the members with these handles, of which a list gives the order of ranks. What is under way ends."""
        if self._left:
            raise self._closed or GroupClosedError("the process group was destroyed")
        handles = self._ordered(opts.handles)
        former = self._rank, self._size, self._store
        self._part_from_former()
        self._rank, self._size = handles.index(self.get_reconfigure_handle()), len(handles)
        self._store = dist.PrefixStore(f"reconfigure/{opts.uuid}/", self._base)
        try:
            meeting = _Claimed(self._store, self._rank, self._name, opts.uuid, handles)
            group = self._meet(meeting, seconds(opts.timeout) or self._limit)
        except BaseException:
            self._rank, self._size, self._store = former
            self._closed = GroupClosedError("the last reconfigure failed; call it again with a fresh uuid")
            raise
        self._uuid, self._ranks = opts.uuid, range(self._size)
        self._closed = None
        self._use(group)
        return Done([])

    def _ordered(self, given: Any) -> list[str]:
        """The handles by rank."""
        handles = list(given) if isinstance(given, list | tuple) else sorted(given)
        own = self.get_reconfigure_handle()
        wrong = [h for h in handles if not h.startswith("comity:") or h.count(":") != own.count(":")]
        if not handles:
            words = "no handles were given; give one for each member"
        elif wrong:
            words = f"{wrong[0]!r} is no handle of this backend; get_reconfigure_handle says what is"
        elif len(set(handles)) < len(handles):
            words = "a handle was given twice; give one for each member"
        elif own not in handles:
            words = f"the handle of this member, {own!r}, is not among those given; a handle serves until the next reconfigure"
        else:
            return handles
        raise MisuseError(f"rank {self._rank}: reconfigure: {words}", self._rank, "reconfigure")

    def _part_from_former(self) -> None:
        """Leave the communicator there is."""
        self._revocable = True
        words = f"rank {self._rank} configures the process group anew"
        error = AbortedError(words, self._rank, None, words)
        self._closed = self._closed or error
        if self._post_office is not None:
            self._post_office.end(error)
        if self._device is not None:
            self._device.leave(words)
        for group in self._groups():
            self._forget(group)
            # Others may be late with their last call: it ends as it would in a group that this rank has left.
            with contextlib.suppress(Error):
                group.close()

    def _shrink_store(self, ranks: Sequence[int]) -> Any:
        """Where the ranks that stay meet."""
        self._shrunk += 1
        stay = hashlib.blake2b(repr(list(ranks)).encode(), digest_size=8).hexdigest()
        return dist.PrefixStore(f"shrink/{self._shrunk}/{stay}/", self._store)
