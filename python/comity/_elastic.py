"""Groups that outlive their ranks: who is left forms the group again, takes in who has come, and gives all the same state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from comity import _core
from comity._collectives import Collectives
from comity.arrays import Block, kind
from comity.errors import MisuseError

if TYPE_CHECKING:
    from comity._group import Group


class Member(NamedTuple):
    """A member of a group, as far as it is known."""

    rank: int
    host: str | None
    pid: int | None


class Departure(NamedTuple):
    """A rank of a former group that is not in the one that follows."""

    #: The rank, by its former number.
    member: Member
    #: The reason, as the rest of the sentence "rank 3 ...".
    why: str


class ReformOutcome(NamedTuple):
    """A group that follows another, and what became of the other's ranks."""

    #: The group. Ranks stand in their former order.
    group: Group
    #: Ranks of the former group that are not in it.
    left: list[Departure]
    #: Ranks that were taken in, by their numbers in the new group: the last ones.
    joined: list[Member]


class Elastic(Collectives):
    """What a group does when ranks die or come."""

    __slots__ = ()

    def reform(
        self, *, fewest: int = 1, timeout: float | None = None, store_decides: bool = False
    ) -> ReformOutcome:
        """Form the group again of the ranks that are left: after a failure, or where all ranks of a healthy group call this.

        The others that live call it too, each when a call of it has failed. They get new numbers without gaps, in the former order.
        Processes that wait to be taken in (`joiners`) become the last ranks. All get the same group, or an error. This group stays failed,
        and one that had not failed is closed. Groups that were split from it are not formed again: split the new one. Where this group is
        the one that functions such as `comity.all_reduce` use, they use the new one from now on.

        Args:
            fewest: Form no group with fewer ranks of this one; processes that join do not count.
            timeout: Seconds to wait for the other ranks; else `Group.timeout` holds.
            store_decides: Go on wherever the store can be asked, with however few ranks. By default the side goes on that has more than
                half of the former ranks; of two halves the one that the store gives its vote.

        Give the same on every rank. `JoinError` says why no group follows. Except where the others went on without this rank, you may call
        this again.
        """
        from comity._functions import follow

        raw, left, joined = self._raw.reform(fewest, store_decides, timeout=timeout)
        group = type(self)(raw)
        self._end.closed = True
        follow(self, group)
        departed = [Departure(Member(*member), why) for member, why in left]
        return ReformOutcome(group, departed, [Member(*member) for member in joined])

    def joiners(self) -> int:
        """How many processes wait to be taken in (``init(join=True)``); the next `reform` takes them in.

        This asks nobody, and ranks may learn of a joiner at different moments: have one of them ask, and tell the others.
        """
        return self._raw.joiners()

    def sync(self, arrays: Sequence[Any], holds: bool, *, timeout: float | None = None) -> list[Any]:
        """Give all ranks the arrays of those that hold them, with the same bits on all. Only what differs is sent.

        Every rank passes arrays and numbers of the same types and shapes in the same order. `holds` says that this rank's are right: true
        on those that went on training, false on those that have just joined. The lowest rank that holds them decides.

        Arrays of NumPy and torch are changed in place. Returns the arrays, which are new ones where their kind cannot be changed.
        """
        blocks = [self._both_ways(x) for x in arrays]
        if any(block.place is not None for block in blocks):
            raise self._misuse("sync: an array is on a device; copy it to host memory first", "sync")
        # Layers may share a tensor.
        buffers = list(dict.fromkeys(block.buffer for block in blocks))
        self._raw.sync(buffers, holds, timeout=timeout)
        results = [block.result for block in blocks]
        return [result() for result in results]

    def all_reduce_or_keep(self, x: Any, op: str = "sum", *, timeout: float | None = None) -> Any:
        """Combine `x` across ranks in place, as `all_reduce` with ``out=x``; where the call fails, `x` stays as it was.

        So it can be repeated in the group that follows (`reform`). This takes memory for another array like `x`.
        """
        src, k = self._source(x)
        new = self._target(k, src, src.shape, None)
        total = self._call("all_reduce", src, new, self._reduced(op), False, timeout)
        block = self._writable(x)
        if block is None or block.place is not None:
            return total
        _core.copy(new.buffer, block.buffer)
        result = block.result
        return result()

    def _writable(self, x: Any) -> Block | None:
        """The memory of `x`, to be written; None where its kind cannot be changed."""
        try:
            return kind(x).write(x)
        except MisuseError:
            return None

    def _both_ways(self, x: Any) -> Block:
        """Memory with the elements of `x`, which become those of `x`, or of a new array, when the call has ended."""
        src, k = self._source(x)
        block = self._writable(x) or self._target(k, src, src.shape, None)
        if block.buffer[0] != src.buffer[0] and src.place is None:
            _core.copy(src.buffer, block.buffer)
        return block
