"""The operations that all ranks of a group call together."""

from collections.abc import Sequence
from typing import Any

from comity._calls import Calls
from comity._core import Args
from comity.errors import Error, MisuseError


class Collectives(Calls):
    """The collectives. See `Group` for what their arguments have in common."""

    __slots__ = ()

    def all_reduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        wire: str | None = None,
    ) -> Any:
        """Combine `x` across ranks; every rank gets the result.

        `op` is "sum", "product", "min", "max", "avg", "and", "or" or "xor".
        """
        if timeout is None and not async_ and wire is None:
            try:
                done = self._raw.all_reduce(x, out, op)
            except Error as e:
                self._end.failed = self._end.failed or not isinstance(e, MisuseError)
                raise
            if done is not None:
                return done
        src, k = self._source(x)
        args = self._reduced(op) if wire is None else self._wired(wire, reduce=self._reduction(op))
        if src.own and out is None:
            return self._call("all_reduce", None, src, args, async_, timeout)
        dst = self._target(k, src, src.shape, out)
        return self._call("all_reduce", src, dst, args, async_, timeout)

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
        src, k = self._source(x)
        dst = self._target(k, src, src.shape, out) if root == self._raw.rank else None
        args = Args(reduce=self._reduction(op), root=root)
        return self._call("reduce", src, dst, args, async_, timeout)

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
        src, k = self._source(x)
        dst = self._target(k, src, src.shape, out)
        return self._call("broadcast", src, dst, Args(root=root), async_, timeout)

    def all_gather(
        self,
        x: Any,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        wire: str | None = None,
    ) -> Any:
        """Join every rank's `x` along the first axis, in the order of ranks; numbers become a list or a vector.

        With `counts`, the same on every rank, rank r gives an array whose first axis has ``counts[r]`` entries.
        """
        src, k = self._source(x)
        if counts is None:
            shape, elements = self._joined(src.shape), None
        else:
            shape, elements = self._uneven("all_gather", src, counts)
            shape = (shape, *src.shape[1:])
        dst = self._target(k, src, shape, out)
        return self._call("all_gather", src, dst, self._wired(wire, counts=elements), async_, timeout)

    def reduce_scatter(
        self,
        x: Any,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        wire: str | None = None,
    ) -> Any:
        """Combine `x` across ranks; rank r gets part r of the result along the first axis.

        The first axis must divide by the group's size, or `counts`, the same on every rank, say how it is cut.
        """
        src, k = self._source(x)
        if counts is None:
            shape, elements = self._part("reduce_scatter", src.shape), None
        else:
            _, elements = self._uneven("reduce_scatter", src, counts)
            shape = (counts[self._raw.rank], *src.shape[1:])
        dst = self._target(k, src, shape, out)
        args = self._wired(wire, reduce=self._reduction(op), counts=elements)
        return self._call("reduce_scatter", src, dst, args, async_, timeout)

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
        src, k = self._source(x)
        mine = root == self._raw.rank
        dst = self._target(k, src, self._joined(src.shape), out) if mine else None
        return self._call("gather", src, dst, Args(root=root), async_, timeout)

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
            src, k = self._source(x)
            dst = self._target(k, src, self._part("scatter", src.shape), out)
            return self._call("scatter", src, dst, Args(root=root), async_, timeout)
        if like is None and out is None:
            words = "scatter: ranks other than the root give `like` or `out`, which tells the shape of a part"
            raise self._misuse(words, "scatter")
        model, k = self._source(out if like is None else like)
        dst = self._target(k, model, model.shape, out)
        return self._call("scatter", None, dst, Args(root=root), async_, timeout)

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
        src, k = self._source(x)
        if (send_counts is None) != (recv_counts is None):
            raise self._misuse("all_to_all: give send_counts and recv_counts, or neither", "all_to_all")
        if send_counts is None or recv_counts is None:
            self._part("all_to_all", src.shape)
            dst = self._target(k, src, src.shape, out)
            return self._call("all_to_all", src, dst, None, async_, timeout)
        _, sent = self._uneven("all_to_all", src, send_counts)
        total, come = self._uneven("all_to_all", src, recv_counts)
        dst = self._target(k, src, (total, *src.shape[1:]), out)
        args = Args(counts=sent, recv_counts=come)
        return self._call("all_to_all", src, dst, args, async_, timeout)

    def barrier(self, *, async_: bool = False, timeout: float | None = None) -> Any:
        """Return once every rank has called this."""
        return self._call("barrier", None, None, None, async_, timeout)
