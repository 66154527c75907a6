"""Looking after calls on a device: a thread of each rank, which with those of the other ranks compares what was called, sees what is late,
and hears of deaths.

Calls are put on streams without asking anybody. Beside them the threads meet several times a second in a group of the core of their own,
and each says how many calls its rank has made, and what the first of them were (a digest). They learn the same, so each comes to the same
verdict::

    rank 0   78 calls   digest of the first 70   all in time
    rank 1   75 calls   digest of the first 70   one is late

The first 75 are compared next. Threads that meet hear at once when a member has died, was stopped, or gave the group up.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from comity._core import Args
from comity.errors import Error, MismatchError, PeerLostError
from comity.errors import TimeoutError as LimitPassed

from . import nccl
from .ledger import NOTHING, SIZE, Ledger, difference, words
from .messages import EVER, gathered, left, of_call
from .work import with_timeout

#: Seconds between two meetings: while calls are made, and the longest.
_BUSY, _IDLE = 0.05, 0.25
#: More for each rank: a meeting of many is more work.
_EACH = 0.0005
LATE, BROKEN = 1, 2
_ANY_TIME = Args(timeout=EVER)
_log = logging.getLogger("comity.torch")


class Row(NamedTuple):
    """What a rank says."""

    calls: int
    #: Of the calls that are compared now.
    digest: int
    #: Whether what carries its calls has failed, or one has passed its limit: `LATE` or `BROKEN`, else 0.
    state: int
    #: Whether the rank leaves.
    leaves: int


def differs(rows: Sequence[Row]) -> bool:
    return any(row.digest != rows[0].digest for row in rows)


def behind(rows: Sequence[Row]) -> list[int]:
    """The ranks that have made fewer calls than others."""
    return [rank for rank, row in enumerate(rows) if row.calls < max(r.calls for r in rows)]


def first_difference(parts: Sequence[bytes]) -> tuple[int, int]:
    """Where the ranks' calls differ first, and a rank that then differs from rank 0."""
    for begin in range(0, len(parts[0]), SIZE):
        for rank, part in enumerate(parts):
            if part[begin : begin + SIZE] != parts[0][begin : begin + SIZE]:
                return begin // SIZE, rank
    raise ValueError("the parts are equal")


class Watch:
    """The thread of one rank."""

    def __init__(self, device: Any, group: Any, ledger: Ledger) -> None:
        """`device`: the `DeviceGroup` whose calls these are; it is told what is found. `group`: of the core, of these threads."""
        self._device = device
        self._group = group
        self._ledger = ledger
        self._target = 0
        self._wake = threading.Event()
        self._leaves = False
        #: Set when the calls that were made before somebody asked are compared; how many these are, once it is known.
        self._asked: threading.Event | None = None
        self._asked_upto: int | None = None
        #: What was found as all left.
        self._verdict: Error | None = None
        self._interval = _BUSY
        self._thread = threading.Thread(target=self._serve, name="comity-watch", daemon=True)
        self._thread.start()

    def compare(self, limit: float) -> None:
        """Wait until what was called so far has been compared, which takes all ranks to ask; so long at most."""
        asked = self._asked = self._asked or threading.Event()
        self._wake.set()
        if self._thread.is_alive():
            asked.wait(limit)

    def finish(self, limit: float) -> None:
        """Leave with the others, so long at most; raises `MismatchError` if the ranks have made different calls."""
        self._leaves = True
        self._wake.set()
        self._thread.join(limit)
        self.stop()
        if self._verdict is not None:
            raise self._verdict

    def stop(self, why: str | None = None) -> None:
        """Leave now; where there is a reason, all ranks are told."""
        self._leaves = True
        if why is not None:
            self._group.abort(why)
        self._group.close()
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _serve(self) -> None:
        try:
            if self._device.index >= 0:
                nccl.beside_captures()
            before: list[Row] = []
            while True:
                rows = self._meet()
                if self._judge(rows):
                    return
                if self._asked is not None and not self._answered():
                    continue
                moves = [r.calls for r in rows] != [r.calls for r in before] or any(r.leaves for r in rows)
                each = _EACH * self._group.size
                self._interval = max(_BUSY, each) if moves else min(2 * self._interval, max(_IDLE, each))
                before = rows
                self._wake.wait(self._interval)
                self._wake.clear()
        except Error as e:
            if not self._leaves:
                self._ended(self._about_calls(e))
        except Exception:
            _log.exception("calls on the device are no longer compared")
        finally:
            if (asked := self._asked) is not None:
                asked.set()

    def _ended(self, error: Error) -> None:
        """No more meetings. Where a rank has left in good order, calls that need it may be under way all the same."""
        if left(error):
            self._device.left(error)
            while not self._leaves and not self._device.state():
                self._wake.wait(_IDLE)
            if self._leaves:
                return
        self._device.failed(error)

    def _answered(self) -> bool:
        """Whether all was compared that was called when somebody asked."""
        if self._asked_upto is None or self._ledger.agreed < self._asked_upto:
            return False
        asked, self._asked, self._asked_upto = self._asked, None, None
        asked.set()
        return True

    def _about_calls(self, e: Error) -> Error:
        """The error that ended a meeting as that of the calls on the device."""
        call = f"{self._ledger.last()} on CUDA tensors"
        return of_call(e, call, str(e).replace(str(e.call), call))

    def _meet(self) -> list[Row]:
        ledger = self._ledger
        asked = self._asked
        calls = ledger.absorb()
        if asked is not None and self._asked_upto is None:
            self._asked_upto = calls
        row = Row(calls, ledger.digest(self._target), self._device.state(), self._leaves)
        all_rows = gathered(self._group, array("q", row).tobytes(), _ANY_TIME)
        return [Row(*array("q", r)) for r in all_rows]

    def _judge(self, rows: list[Row]) -> bool:
        """Compare. Whether this was the last meeting."""
        ledger = self._ledger
        if differs(rows):
            self._end(self._mismatch(self._target))
            return True
        ledger.agree(self._target)
        self._target = min(row.calls for row in rows)
        if any(row.state for row in rows):
            self._end(self._late(rows))
            return True
        if not all(row.leaves for row in rows) or ledger.agreed < self._target:
            return False
        if any(row.calls != self._target for row in rows):
            self._end(self._more(rows))
        return True

    def _end(self, error: Error) -> None:
        if self._leaves:
            self._verdict = error
        else:
            self._device.failed(error)

    def _mismatch(self, upto: int) -> MismatchError:
        ledger, me = self._ledger, self._group.rank
        parts = gathered(self._group, ledger.part(upto), _ANY_TIME)
        at, other = first_difference(parts)
        at_byte = at * SIZE
        calls = [part[at_byte : at_byte + SIZE] for part in parts]
        if calls[me] != calls[0]:
            other = 0
        number = ledger.agreed + at + 1
        first, second = sorted((me, other))
        what = difference(calls[first], calls[second])
        told = [words(calls[r], number) for r in (first, second)]
        said = f"rank {first} called {told[0]} while rank {second} called {told[1]}"
        return MismatchError(
            f"ranks disagree in {what}: {said}, on CUDA tensors; make the same calls with the same arguments in the same order on "
            "every rank. Results since then may be wrong",
            other,
            words(calls[me], number),
            what,
        )

    def _late(self, rows: list[Row]) -> Error:
        """A call has not ended, on one rank at least."""
        rank = next(r for r, row in enumerate(rows) if row.state)
        late, least = behind(rows), min(row.calls for row in rows)
        call = f"{self._call(least if late else least - 1)} on CUDA tensors"
        if rows[rank].state == BROKEN:
            cause = f"NCCL failed on rank {rank}; the words of torch above, and NCCL_DEBUG=INFO, say more"
            return PeerLostError(f"{call}: {cause}", rank, call, cause)
        said = f"{call} did not end within {self._device.limit():g} s on rank {rank}: "
        if not late:
            cause = "all ranks have made it, or sends and receives in a batch have no match"
            return with_timeout(LimitPassed(said + cause, None, call, cause))
        who = ", ".join(f"rank {r}" for r in late)
        cause = f"{who} made {least} such calls, and not this one"
        return with_timeout(LimitPassed(said + cause, late[0], call, cause))

    def _more(self, rows: list[Row]) -> MismatchError:
        """Some ranks have left with a call more than others."""
        at, me = self._target, self._group.rank
        call = self._call(at)
        more = next(r for r, row in enumerate(rows) if row.calls > at)
        fewer = next(r for r, row in enumerate(rows) if row.calls <= at)
        cause = f"rank {more} called {call} on CUDA tensors, and rank {fewer} left without it"
        return MismatchError(f"ranks disagree: {cause}", fewer if rows[me].calls > at else more, call, cause)

    def _call(self, at: int) -> str:
        """A call in words, by a rank that has made it."""
        own = self._ledger.call(at) if at >= self._ledger.agreed else self._ledger.latest
        parts = gathered(self._group, own, _ANY_TIME)
        return words(next((p for p in parts if p != NOTHING), NOTHING), at + 1)
