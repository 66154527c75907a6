"""Groups: what they are, how they end, and what two ranks of one pass to each other."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from comity._collectives import Collectives
from comity._core import Args
from comity.arrays import kind, kind_of_dtype
from comity.errors import Misuse


class Member(NamedTuple):
    """A member of a group, as far as it is known."""

    rank: int
    host: str | None
    pid: int | None


class Group(Collectives):
    """Ranks that call collectives together. `comity.init` makes one.

    Make the same calls in the same order on every rank. Calls on one group run one at a time. A call takes arrays of NumPy, torch, MLX or
    JAX, anything with DLPack or the buffer protocol, and Python's numbers. It returns a new array of the kind that you gave. Options,
    where a call has them:

    - ``out``: the array to write the result to, which is also returned; ``out=x`` works in place.
    - ``async_=True``: return a `Request` at once, and make the call in its turn in the background.
    - ``timeout``: seconds that this call may take; else `Group.timeout` holds.

    A group of ``init("nccl")`` also takes arrays on its CUDA device: of torch, CuPy and JAX, and what has DLPack or the CUDA array
    interface. A call then returns when its work is on the framework's current stream. It is done in that stream's order.

    A call waits without the interpreter's lock. Ctrl-C, or any signal handler that raises, ends it within 200 ms. The group then ends on
    all ranks. `Misuse` leaves the group as it was. After any other error it has failed on every rank.
    """

    __slots__ = ()

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
        """The CUDA device whose arrays calls take as well; None without `init("nccl")`."""
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

        Compares the calls made here with those of the other ranks. These need not call anything for it. `close` waits for a rank that has
        made fewer calls, at most 2 s. It raises `Mismatch` if the calls differ and no call has shown it.
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
        """Give every rank the root's `x`. The others pass an array of the same shape and type; its elements do not matter."""
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
        """Join every rank's `x` along the first axis, in the order of ranks; numbers become a list or a vector.

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
        """Give rank r part r of the root's `x` along the first axis.

        The others pass `like`, an array of a part's shape and type, or `out`. Their `x` is not used.
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

        Returns when you may change `x` again. That may be before it is received. Two ranks that both send long arrays before they
        receive wait for each other: use `sendrecv`.
        """
        src, _ = self._source(x)
        return self._call("send", src, None, Args(peer=dst, tag=tag), async_, timeout, lambda: x)

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
        try:
            block = kind_of_dtype(dtype).new(tuple(shape), dtype) if out is None else kind(out).write(out)
        except Misuse as e:
            self._own(e)
            raise
        self._same_shape(block, tuple(shape))
        return self._call("recv", None, block, Args(peer=src, tag=tag), async_, timeout)

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
        model, k = self._source(x)
        block = self._target(k, model, model.shape, out)
        return self._call("recv", None, block, Args(peer=src, tag=tag), async_, timeout)

    def sendrecv(
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
        block, k = self._source(x)
        model, kind_in = (block, k) if like is None else self._source(like)
        into = self._target(kind_in, model, model.shape, out)
        args = Args(peer=dst, source=src, tag=tag)
        return self._call("sendrecv", block, into, args, async_, timeout)

    # Objects

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
