"""Groups: what they are, how they end, and what two ranks of one pass to each other."""

from collections.abc import Sequence
from typing import Any

from comity._core import Args
from comity._elastic import Elastic, Member
from comity.arrays import kind, kind_of_dtype
from comity.errors import MisuseError


class Group(Elastic):
    """Ranks that call collectives together. `comity.init` makes one.

    Make the same calls in the same order on every rank. Calls on one group run one at a time. A call takes arrays of NumPy, torch, MLX or
    JAX, anything with DLPack or the buffer protocol, and Python's numbers. It returns a new array of the kind that you gave. Options,
    where a call has them:

    - ``out``: the array to write the result to, which is also returned; ``out=x`` works in place.
    - ``async_=True``: return a `Request` at once, and make the call in its turn in the background.
    - ``timeout``: seconds that this call may take, ``math.inf`` for as long as all ranks live; else `Group.timeout` holds.
    - ``wire``: the form in which elements of all_reduce, reduce_scatter and all_gather cross a slow network: ``"bf16"`` and ``"f16"`` halve
      the bytes of float32, ``"int8"`` leaves a quarter. Each contribution is rounded once and the sum once more, and all ranks get the
      same bits. For sums and averages of float32, float16 and bfloat16 in host memory.

    A group of ``init("nccl")`` also takes arrays on its CUDA device: of torch, CuPy and JAX, and what has DLPack or the CUDA array
    interface. A call then returns when its work is on the framework's current stream. It is done in that stream's order.

    A call waits without the interpreter's lock. Ctrl-C, or any signal handler that raises, ends it within 200 ms. The group then ends on
    all ranks. `MisuseError` leaves the group as it was. After any other error it has failed on every rank:
    `reform` makes a new one of the ranks that are left.
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
        """The kind of link to each rank ("shm", "tcp"), until a call has needed it the one tried first; None for this rank."""
        return self._raw.link_kinds()

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """An array of zeros in memory that the other ranks of this host map, to read only.

        Calls on it, or on a part of it, need no copy within the host: a rank reads what it needs straight from the sender's array.
        Results have the same bits. Use it for large arrays that live long. `dtype` is a type of NumPy, for an array of NumPy, or one of
        torch, for a tensor.

        It is ordinary memory where nobody could read it, where ``COMITY_SHARED_BUFFERS`` is reached, and where the system gives none;
        ``x.base.why_not`` of NumPy's array ``x`` says so. A forked child shares the memory.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return kind_of_dtype(dtype).over(self._raw.alloc, shape, dtype)

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
        """Leave the group: later calls raise `GroupClosedError`.

        Compares the calls made here with those of the other ranks. These need not call anything for it. `close` waits for a rank that has
        made fewer calls, at most 2 s. It raises `MismatchError` if the calls differ and no call has shown it.
        """
        self._end.closed = True
        self._raw.close()

    def abort(self, why: str = "abort was called") -> None:
        """Give the group up on every rank: calls under way and later ones raise `AbortedError` with these words."""
        self._raw.abort(why)
        self._end.failed = True

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<comity.Group: rank {self._raw.rank} of {self._size}>"

    # Between two ranks

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
        except MisuseError as e:
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
