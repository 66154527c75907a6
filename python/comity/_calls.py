"""How a group makes a call: arrays become memory, the core moves it, and an array comes back."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from comity import _core
from comity._request import Request
from comity.arrays import Block, Kind, kind
from comity.errors import Error, MisuseError

_NAMES = {name: name for name in _core.REDUCTIONS} | {"mean": "avg", "average": "avg", "prod": "product"}
# Arguments never change, so that calls with nothing but a reduction share theirs: small calls need not make any.
_REDUCED = {name: _core.Args(reduce=reduce) for name, reduce in _NAMES.items()}


class End:
    """What has ended a group on this rank."""

    __slots__ = ("closed", "failed")

    def __init__(self) -> None:
        self.closed = False
        self.failed = False


class Calls:
    """A group of the core, and calls on it. A `MisuseError` that is found on the way gets this rank."""

    __slots__ = ("__weakref__", "_end", "_raw", "_size")

    def __init__(self, raw: "_core.Group", end: End | None = None) -> None:
        """`end`: that of another object for the same group of the core."""
        self._raw = raw
        self._size = raw.size
        self._end = end or End()

    def _call(
        self,
        op: str,
        src: Block | None,
        dst: Block | None,
        args: _core.Args | None,
        async_: bool,
        timeout: float | None,
        result: Callable[[], Any] | None = None,
    ) -> Any:
        """Make the call, and return its result or a request for it. `timeout`: seconds."""
        if result is None:
            result = _nothing if dst is None else dst.result
        inp, out = src and src.buffer, dst and dst.buffer
        try:
            place = _place(op, src, dst)
            if place is not None or timeout is not None:
                args = (args or _core.Args()).replace(place=place, timeout=timeout)
            if async_:
                return Request(self._raw.start(op, inp, out, args, hold=(src, dst)), result)
            self._raw.run(op, inp, out, args)
        except MisuseError as e:
            self._own(e)
            raise
        except Error:
            # The core does not count a call that it refuses because an earlier one failed.
            self._end.failed = self._end.failed or not async_
            raise
        return result()

    def _own(self, e: MisuseError) -> None:
        """The mistake is this rank's, unless it is known to be another's."""
        if e.rank is None:
            e.rank = self._raw.rank

    def _misuse(self, words: str, op: str | None = None) -> MisuseError:
        """A mistake of this rank, in a call of `op`."""
        return MisuseError(words, self._raw.rank, op)

    def _source(self, x: Any) -> tuple[Block, Kind]:
        """The memory of `x`, to be read, and what kind of array it is."""
        try:
            k = kind(x)
            return k.read(x), k
        except MisuseError as e:
            self._own(e)
            raise

    def _target(self, k: Kind, model: Block, shape: tuple[int, ...], out: Any) -> Block:
        """The memory of `out`, which must have this shape; of a new array of this shape and of the type of `model` without `out`."""
        try:
            if out is None:
                return k.make(shape, model)
            block = kind(out).write(out)
        except MisuseError as e:
            self._own(e)
            raise
        self._same_shape(block, shape)
        return block

    def _same_shape(self, block: Block, shape: tuple[int, ...]) -> None:
        if block.shape != shape:
            raise self._misuse(f"`out` has shape {block.shape}, and the result {shape}")

    def _reduction(self, op: str) -> str:
        """The core's name of a reduction."""
        try:
            return _NAMES[op]
        except (KeyError, TypeError):
            import difflib  # only a mistake needs it

            near = difflib.get_close_matches(str(op), _NAMES, 1)
            names = f"do you mean {near[0]!r}?" if near else f"there are {', '.join(_NAMES)}"
            raise self._misuse(f"there is no reduction {op!r}; {names}") from None

    def _reduced(self, op: str) -> _core.Args:
        """The arguments of a call with nothing but a reduction."""
        try:
            return _REDUCED[op]
        except (KeyError, TypeError):
            return _core.Args(reduce=self._reduction(op))

    def _wired(self, wire: str | None, **args: Any) -> _core.Args:
        """The arguments of a call on a wire, or on none."""
        try:
            return _core.Args(wire=wire, **args)
        except MisuseError as e:
            self._own(e)
            raise

    def _joined(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of every rank's array of this shape, one after the other."""
        return (self._size * shape[0], *shape[1:]) if shape else (self._size,)

    def _part(self, op: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one rank's part of an array of this shape."""
        n = self._size
        if not shape or shape[0] % n:
            raise self._misuse(
                f"{op}: the first axis of shape {shape} does not divide by the group's size, {n}", op
            )
        return (shape[0] // n, *shape[1:])

    def _uneven(self, op: str, src: Block, counts: Sequence[int]) -> tuple[int, list[int]]:
        """The sum of `counts`, which are along the first axis, and the elements that they stand for."""
        rank, n = self._raw.rank, self._size
        if not src.shape:
            raise self._misuse(f"rank {rank}: {op}: counts need an array with an axis", op)
        if len(counts) != n:
            raise self._misuse(f"rank {rank}: {op}: {len(counts)} counts were given for {n} ranks", op)
        if min(counts) < 0:
            words = f"rank {rank}: {op}: the count of a rank is {min(counts)}, and must be 0 or more"
            raise self._misuse(words, op)
        rest = math.prod(src.shape[1:])
        return sum(counts), [c * rest for c in counts]


def _place(op: str, src: Block | None, dst: Block | None) -> Any:
    """Where a call's memory is; None for the host's."""
    if src is None or dst is None or src.place == dst.place:
        one = dst if src is None else src
        return one and one.place
    if src.place is None or dst.place is None:
        raise MisuseError(
            f"{op}: one array is in host memory and the other on a CUDA device; both must be in one place"
        )
    # What does not say which device it is on, is on the group's; its stream's order is left to the other.
    if None in (src.place[0], dst.place[0]) or src.place[0] == dst.place[0]:
        return dst.place if src.place[0] is None else src.place
    raise MisuseError(
        f"{op}: the arrays are on CUDA devices {src.place[0]} and {dst.place[0]}; both must be on one"
    )


def _nothing() -> None:
    return None
