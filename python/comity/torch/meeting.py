"""How the ranks of a group meet at torch's store.

A store may have served others under the same names: after `destroy_process_group` torch counts its groups anew, and a rank that was
started again finds what the first one left. So rank 0 numbers its tries, and posts the number with what the others need. Each notes the
last try at which it met the others, and takes a later one only::

    comity/tries     number of rank 0's tries
    comity/try       "NUMBER TEXT" of the try that is under way, "NUMBER " after it
    comity/rank/R    "MET FAILED": the last tries at which rank R met the others, and at which it did not
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from typing import Any

from comity import _core
from comity.errors import JoinError

_log = logging.getLogger("comity.torch")
_TRIES, _TRY = "comity/tries", "comity/try"
#: Longest time between two looks at the store, in seconds, and the share of the time waited so far.
_LONGEST, _SHARE = 0.2, 0.1
#: Seconds in which rank 0, which is told that this rank failed, takes back what it posted, and in which an address answers.
_ENDS = 1.0
#: Seconds after which a rank says for whom it waits.
_PATIENCE = 10.0


def started() -> int:
    """Number of ranks that a launcher started, or 0."""
    said = os.environ.get("WORLD_SIZE", "")
    return int(said) if said.isdecimal() else 0


def other_size(size: int) -> str:
    """Words for a program that gave torch another number of ranks than were started."""
    who = "`comity launch`" if "COMITY_SIZE" in os.environ else "the launcher"
    begin = f"the program gave torch world_size={size}, and {who} started {started()} ranks"
    return f"{begin}: leave world_size out, or start {size}"


class Meeting:
    """One try of this rank."""

    def __init__(self, store: Any, rank: int, size: int, name: str) -> None:
        self._store, self._rank, self._name = store, rank, name
        self._note = f"comity/rank/{rank}"
        noted = store.get(self._note).split() if store.check([self._note]) else (0, 0)
        self._met, self._failed = map(int, noted)
        self._size = size
        #: Number of rank 0's try.
        self.number = store.add(_TRIES, 1) if rank == 0 else 0

    def set(self, _: str, text: str) -> None:
        """Post what the others need. It may hold the job's key."""
        self._store.set(_TRY, f"{self.number} {text}")

    def get(self, _: str, limit: float) -> str:
        """Wait for the text of a try at which this rank has not met rank 0 yet."""
        begun = time.monotonic()
        # One for all: torch says nothing while rank 0 waits in its store.
        says = self._rank == 1
        while True:
            waited = time.monotonic() - begun
            if says and waited > _PATIENCE:
                says = False
                _log.warning("%s", self._waits(waited))
            # Not `wait`: it keeps the store to itself, and does not hear that the program was interrupted.
            if self._store.check([_TRY]):
                number, _, text = self._store.get(_TRY).decode().partition(" ")
                is_new = int(number) > self._met and (int(number) > self._failed or waited > _ENDS)
                # Rank 0 may have been killed before it took it back.
                if text and is_new and not _is_deserted(text):
                    self.number = int(number)
                    return text
            if waited >= limit or _core.is_given_up():
                raise self.absent(waited)
            time.sleep(self.pause(waited))

    def absent(self, waited: float) -> JoinError:
        """The error for a rank 0 that did not come."""
        words = f"rank {self._rank} waited {waited:.0f} s for rank 0 to come to group {self._name!r}"
        return JoinError(words, rank=0, cause="absent", ranks=[0])

    def _waits(self, waited: float) -> str:
        begin = f"rank {self._rank} has waited {waited:.0f} s for rank 0 to come to group {self._name!r}"
        if 0 < started() < self._size:
            return f"{begin}, which may wait in torch's store for more ranks; {other_size(self._size)}"
        return f"{begin}: it may prepare, or wait in torch's store because it has another world_size"

    @staticmethod
    def pause(waited: float) -> float:
        """Seconds until the next look at the store."""
        return min(max(waited * _SHARE, 0.001), _LONGEST)

    def close(self, met: bool) -> None:
        """End the try. The others have read what was posted if all have met, and are not to read it if not."""
        # The store may be why it failed.
        with contextlib.suppress(Exception):
            if self._rank == 0:
                self._store.set(_TRY, f"{self.number} ")
            elif self.number:
                self._store.set(self._note, f"{self.number} 0" if met else f"{self._met} {self.number}")


def _is_deserted(text: str) -> bool:
    """Whether nobody listens any more where this text says. Anything but a refusal is for the core to judge."""
    for address in text.rpartition("/")[0].split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ENDS).close()
        except ConnectionRefusedError:
            continue
        except (OSError, ValueError):
            pass
        return False
    return True
