"""Groups, and the operations on arrays of every kind."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from comity import _core
from comity._arrays import Block, Kind, kind, kind_of_dtype
from comity._request import Request
from comity.errors import Error, Misuse

_OPS = {name: name for name in _core.REDUCTIONS} | {"mean": "avg", "average": "avg", "prod": "product"}


class Member(NamedTuple):
    """A member of a group, as far as it is known."""

    rank: int
    host: str | None
    pid: int | None


class End:
    """What has ended a group on this rank."""

    __slots__ = ("closed", "failed")

    def __init__(self) -> None:
        self.closed = False
        self.failed = False


class Group:
    """Ranks that call collectives together. `comity.init` makes one.

    Calls on one group run one at a time, in the order they are made, which must be the same on every rank. Each takes arrays of NumPy,
    torch, MLX or JAX, anything with DLPack or the buffer protocol, and Python's numbers, and returns a new array of the kind
    it was given. Where they are offered:

    - ``out``: the array to write the result to, which is also returned; ``out=x`` works in place.
    - ``async_=True``: return a `Request` at once, and make the call in its turn in the background.
    - ``timeout``: seconds that this call may take; else `Group.timeout` holds.

    In a group that was made with ``init("nccl")`` they may be on the group's CUDA device: those of torch, CuPy, JAX, and what has DLPack or
    the CUDA array interface. A call then returns when its work is on the framework's current stream, in whose order it is done.

    A call waits without the interpreter's lock. Ctrl-C, or any signal handler that raises, ends it within 200 ms, and with it the group,
    on all ranks. `Misuse` leaves the group as it was; after any other error it has failed on every rank.
    """

    __slots__ = ("__weakref__", "_end", "_raw", "_size")

    def __init__(self, raw: "_core.Group", end: "End | None" = None) -> None:
        """`end`: that of another object for the same group of the core."""
        self._raw = raw
        self._size = raw.size
        self._end = end or End()

    @property
    def closed(self) -> bool:
        """Whether `close` was called here."""
        return self._end.closed

    @property
    def _failed(self) -> bool:
        """Whether a call has failed here, or `abort` was called."""
        return self._end.failed or self._raw.stats()["errors"] > 0

    @property
    def rank(self) -> int:
        """This process's place in the group, from 0."""
        return self._raw.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    @property
    def device(self) -> int | None:
        """The CUDA device whose memory calls take, besides the host's; None without `init("nccl")`."""
        return self._raw.device

    @property
    def timeout(self) -> float:
        """How long a call may take, in seconds. A call that runs out of time ends the group."""
        return self._raw.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._raw.timeout = seconds

    @property
    def members(self) -> list[Member]:
        """The members by rank, as errors name them."""
        return [Member(*m) for m in self._raw.members()]

    @property
    def links(self) -> list[str | None]:
        """The kind of link to each rank ("shm", "tcp"); None for this rank."""
        return self._raw.link_kinds()

    def stats(self) -> dict[str, float]:
        """What this group has done on this rank so far.

        "calls" that succeeded, "errors", "bytes_sent" of payload, seconds "parked" (asleep for other ranks), "suspicions" (how
        often a member was silent for a fifth of the detection limit), and "longest_silence" of one member, in seconds.
        """
        return self._raw.stats()

    def split(self, color: int | None, key: int = -1) -> "Group | None":
        """Split into groups of equal color; every rank calls this.

        Ranks are ordered by `key`, then by rank in this group. A rank that gives None takes part, and gets no group.
        """
        raw = self._raw.split(color, key)
        return None if raw is None else type(self)(raw)

    def close(self) -> None:
        """Leave the group: later calls raise `Closed`.

        Compares the calls made here with those of the other ranks, which need not call anything for it. One that has made fewer is
        waited for, at most 2 s. Raises `Mismatch` if they differ and no call has shown it.
        """
        self._end.closed = True
        self._raw.close()

    def abort(self, why: str = "abort was called") -> None:
        """Give the group up on every rank: calls under way and later ones raise `Aborted` with these words."""
        self._raw.abort(why)
        self._end.failed = True

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<comity.Group: rank {self._raw.rank} of {self._size}>"

    # Operations

    def all_reduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Combine `x` across ranks; every rank gets the result.

        `op` is "sum", "product", "min", "max", "avg", "and", "or" or "xor".
        """
        src, k = _source(x)
        dst = _target(k, src, src.shape, out)
        return self._call("all_reduce", src, dst, async_, timeout, reduce=_reduction(op))

    def all_sum(self, x: Any, **options: Any) -> Any:
        """As `all_reduce` with "sum"."""
        return self.all_reduce(x, "sum", **options)

    def all_max(self, x: Any, **options: Any) -> Any:
        """As `all_reduce` with "max"."""
        return self.all_reduce(x, "max", **options)

    def all_min(self, x: Any, **options: Any) -> Any:
        """As `all_reduce` with "min"."""
        return self.all_reduce(x, "min", **options)

    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: str = "sum",
        *,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Combine `x` across ranks; `root` gets the result, the others None."""
        src, k = _source(x)
        dst = _target(k, src, src.shape, out) if root == self._raw.rank else None
        return self._call("reduce", src, dst, async_, timeout, reduce=_reduction(op), root=root)

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """The root's `x` on every rank. The others give an array of the same shape and type, whose elements do not matter."""
        src, k = _source(x)
        dst = _target(k, src, src.shape, out)
        return self._call("broadcast", src, dst, async_, timeout, root=root)

    def all_gather(
        self,
        x: Any,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Every rank's `x`, by rank, one after the other along the first axis; numbers become a list or a vector.

        With `counts`, the same on every rank, rank r gives an array whose first axis has ``counts[r]`` entries.
        """
        src, k = _source(x)
        if counts is None:
            shape, elements = _joined(src.shape, self._size), None
        else:
            shape, elements = self._uneven("all_gather", src, counts)
            shape = (shape, *src.shape[1:])
        dst = _target(k, src, shape, out)
        return self._call("all_gather", src, dst, async_, timeout, counts=elements)

    def reduce_scatter(
        self,
        x: Any,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Combine `x` across ranks; rank r gets part r of the result along the first axis.

        The first axis must divide by the group's size, or `counts`, the same on every rank, say how it is cut.
        """
        src, k = _source(x)
        if counts is None:
            shape, elements = self._part("reduce_scatter", src.shape), None
        else:
            _, elements = self._uneven("reduce_scatter", src, counts)
            shape = (counts[self._raw.rank], *src.shape[1:])
        dst = _target(k, src, shape, out)
        return self._call("reduce_scatter", src, dst, async_, timeout, reduce=_reduction(op), counts=elements)

    def sum_scatter(self, x: Any, **options: Any) -> Any:
        """As `reduce_scatter` with "sum"."""
        return self.reduce_scatter(x, "sum", **options)

    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """As `all_gather`, for `root` only; the others get None."""
        src, k = _source(x)
        mine = root == self._raw.rank
        dst = _target(k, src, _joined(src.shape, self._size), out) if mine else None
        return self._call("gather", src, dst, async_, timeout, root=root)

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        like: Any = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Part r of the root's `x` along the first axis for rank r.

        The others give `like`, an array of a part's shape and type, or `out`; what they give as `x` is not used.
        """
        if root == self._raw.rank:
            src, k = _source(x)
            dst = _target(k, src, self._part("scatter", src.shape), out)
            return self._call("scatter", src, dst, async_, timeout, root=root)
        if like is None and out is None:
            raise Misuse(
                "scatter: ranks other than the root give `like` or `out`, which tells the shape of a part"
            )
        model, k = _source(out if like is None else like)
        dst = _target(k, model, model.shape, out)
        return self._call("scatter", None, dst, async_, timeout, root=root)

    def all_to_all(
        self,
        x: Any,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Part r of `x` along the first axis goes to rank r; the result has one part from each rank, by rank.

        The first axis must divide by the group's size, or `send_counts` and `recv_counts` say how many of its entries go to
        each rank and come from each.
        """
        src, k = _source(x)
        if (send_counts is None) != (recv_counts is None):
            raise Misuse("all_to_all: give send_counts and recv_counts, or neither")
        if send_counts is None or recv_counts is None:
            self._part("all_to_all", src.shape)
            dst = _target(k, src, src.shape, out)
            return self._call("all_to_all", src, dst, async_, timeout)
        _, sent = self._uneven("all_to_all", src, send_counts)
        total, come = self._uneven("all_to_all", src, recv_counts)
        dst = _target(k, src, (total, *src.shape[1:]), out)
        return self._call("all_to_all", src, dst, async_, timeout, counts=sent, recv_counts=come)

    def send(
        self, x: Any, dst: int, *, tag: int = 0, async_: bool = False, timeout: float | None = None
    ) -> Any:
        """Send `x` to rank `dst`, which calls `recv` with the same tag; returns `x`.

        Returns when `x` may be changed again, which may be before it is received. Two ranks that both send long arrays before they receive
        wait for each other: use `exchange`.
        """
        src, _ = _source(x)
        return self._call("send", src, None, async_, timeout, lambda: x, peer=dst, tag=tag)

    def recv(
        self,
        shape: Sequence[int],
        dtype: Any,
        src: int,
        *,
        tag: int = 0,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Receive what rank `src` sends, of this shape and type, as an array of the framework that the type is of."""
        k = kind_of_dtype(dtype)
        if out is None:
            block = k.new(tuple(shape), dtype)
        else:
            block = kind(out).write(out)
            _same_shape(block, tuple(shape))
        return self._call("recv", None, block, async_, timeout, peer=src, tag=tag)

    def recv_like(
        self,
        x: Any,
        src: int,
        *,
        tag: int = 0,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Receive what rank `src` sends, of the shape, type and kind of `x`. With ``out=x`` into `x` itself."""
        model, k = _source(x)
        block = _target(k, model, model.shape, out)
        return self._call("recv", None, block, async_, timeout, peer=src, tag=tag)

    def exchange(
        self,
        x: Any,
        dst: int,
        src: int,
        *,
        like: Any = None,
        tag: int = 0,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Send `x` to rank `dst` and receive from rank `src` at once: the step of a ring, with no order to get wrong.

        What comes has the shape and type of `like`, by default of `x`.
        """
        block, k = _source(x)
        model, kind_in = (block, k) if like is None else _source(like)
        into = _target(kind_in, model, model.shape, out)
        return self._call("exchange", block, into, async_, timeout, peer=dst, source=src, tag=tag)

    def barrier(self, *, async_: bool = False, timeout: float | None = None) -> Any:
        """Return once every rank has called this."""
        return self._call("barrier", None, None, async_, timeout)

    def broadcast_object(self, obj: Any = None, root: int = 0, *, allow_pickle: bool = False) -> Any:
        """The root's `obj` on every rank; None, bool, int, float, str, bytes, list, tuple, dict and arrays can be passed,
        anything else only as a pickle, which `allow_pickle` must allow on every rank."""
        from comity import _objects

        return _objects.broadcast(self._raw, obj, root, allow_pickle)

    def all_gather_object(self, obj: Any, *, allow_pickle: bool = False) -> list[Any]:
        """Every rank's `obj`, by rank."""
        from comity import _objects

        return _objects.all_gather(self._raw, obj, allow_pickle)

    def scatter_object(
        self, objs: Sequence[Any] | None = None, root: int = 0, *, allow_pickle: bool = False
    ) -> Any:
        """Entry r of the root's `objs` for rank r."""
        from comity import _objects

        return _objects.scatter(self._raw, objs, root, allow_pickle)

    def _call(
        self,
        op: str,
        src: Block | None,
        dst: Block | None,
        async_: bool,
        timeout: float | None,
        result: Callable[[], Any] | None = None,
        **args: Any,
    ) -> Any:
        if result is None:
            result = _nothing if dst is None else dst.result
        inp, out = src and src.buffer, dst and dst.buffer
        place = _place(op, src, dst)
        if place is not None:
            args["place"] = place
        if async_:
            return Request(self._raw.start(op, inp, out, timeout=timeout, hold=(src, dst), **args), result)
        try:
            self._raw.run(op, inp, out, timeout=timeout, **args)
        except Misuse:
            raise
        except Error:
            # The core does not count a call that it refuses because an earlier one failed.
            self._end.failed = True
            raise
        return result()

    def _part(self, op: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        n = self._size
        if not shape or shape[0] % n:
            raise Misuse(f"{op}: the first axis of shape {shape} does not divide by the group's size, {n}")
        return (shape[0] // n, *shape[1:])

    def _uneven(self, op: str, src: Block, counts: Sequence[int]) -> tuple[int, list[int]]:
        """The sum of `counts`, which are along the first axis, and the elements that they stand for."""
        rank, n = self._raw.rank, self._size
        if not src.shape:
            raise Misuse(f"rank {rank}: {op}: counts need an array with an axis", None, op)
        if len(counts) != n:
            raise Misuse(f"rank {rank}: {op}: {len(counts)} counts were given for {n} ranks", None, op)
        if min(counts) < 0:
            raise Misuse(
                f"rank {rank}: {op}: the count of a rank is {min(counts)}, and must be 0 or more", None, op
            )
        rest = math.prod(src.shape[1:])
        return sum(counts), [c * rest for c in counts]


def _place(op: str, src: Block | None, dst: Block | None) -> Any:
    """Where a call's memory is; None for the host's."""
    if src is None or dst is None or src.place == dst.place:
        one = dst if src is None else src
        return one and one.place
    if src.place is None or dst.place is None:
        raise Misuse(
            f"{op}: one array is in host memory and the other on a CUDA device; both must be in one place"
        )
    # What does not say which device it is on, is on the group's; its stream's order is left to the other.
    if None in (src.place[0], dst.place[0]) or src.place[0] == dst.place[0]:
        return dst.place if src.place[0] is None else src.place
    raise Misuse(
        f"{op}: the arrays are on CUDA devices {src.place[0]} and {dst.place[0]}; both must be on one"
    )


def _nothing() -> None:
    return None


def _reduction(op: str) -> str:
    try:
        return _OPS[op]
    except (KeyError, TypeError):
        raise Misuse(f"there is no reduction {op!r}; there are {', '.join(_core.REDUCTIONS)}") from None


def _joined(shape: tuple[int, ...], n: int) -> tuple[int, ...]:
    return (n * shape[0], *shape[1:]) if shape else (n,)


def _source(x: Any) -> tuple[Block, Kind]:
    k = kind(x)
    return k.read(x), k


def _target(k: Kind, src: Block, shape: tuple[int, ...], out: Any) -> Block:
    if out is None:
        return k.make(shape, src)
    block = kind(out).write(out)
    _same_shape(block, shape)
    return block


def _same_shape(block: Block, shape: tuple[int, ...]) -> None:
    if block.shape != shape:
        raise Misuse(f"`out` has shape {block.shape}, and the result {shape}")
