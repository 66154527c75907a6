"""Every collective of c10d on a group of the core: what torch's classes call, shared by `backend.py` and `process_group.py`.

A call that its caller waits for (`async_op=False`) runs on that caller's thread; others are queued on the group's thread, in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from comity.errors import Error, Misuse

from . import cuda, shims, turns
from . import tensors as T
from .work import Done, Failed, Several, Work, seconds

_KINDS = _c10d.ReduceOp.RedOpType
_REDUCTIONS = {
    _KINDS.SUM: "sum",
    _KINDS.AVG: "avg",
    _KINDS.PRODUCT: "product",
    _KINDS.MIN: "min",
    _KINDS.MAX: "max",
    _KINDS.BAND: "and",
    _KINDS.BOR: "or",
    _KINDS.BXOR: "xor",
    _KINDS.PREMUL_SUM: "sum",
}
_NO_OPTIONS = _c10d.AllreduceOptions()
#: In `allreduce_coalesced`, tensors below this many bytes share one call.
_TOGETHER = 1 << 20


def _in_block(f: Callable[..., _c10d.Work]) -> Callable[..., _c10d.Work]:
    """A call that may be one of several at once. There its error is raised at the end, by `wait`: torch does not end a block that it
    leaves with an exception, and takes all later calls for parts of it."""

    @functools.wraps(f)
    def call(self: Collectives, *args: Any, **rest: Any) -> _c10d.Work:
        try:
            return f(self, *args, **rest)
        except Exception as e:
            if self._pending is None:
                raise
            return self._noted(Work(Failed(e), []))

    return call


class Collectives:
    """The calls. What makes and ends groups is in `lifecycle.py`."""

    # -- how a call is made

    def _go(
        self,
        op: str,
        opts: Any,
        result: Any,
        inp: T.Given | None = None,
        out: T.Given | None = None,
        keep: Any = (),
        after: Sequence[T.Finish] = (),
        **rest: Any,
    ) -> _c10d.Work:
        """Make a call: now if its caller waits for it, else in its turn in the background."""
        self._check_open(op)
        self._calls += 1
        timeout = getattr(opts, "timeout", None)
        if timeout is not None and (limit := seconds(timeout)) is not None:
            rest["timeout"] = limit
        given = out or inp
        size = given[2] * T.SIZES[given[1]] if given else 0
        begun = perf_counter_ns()
        now = not getattr(opts, "asyncOp", True)
        ours = cuda.tensors_of(keep)
        try:
            if ours:
                return cuda.untraced(self._go_on_device)(
                    op, ours, now, result, (inp, out), keep, after, begun, size, rest
                )
            channel = self._channels.here()
            if now:
                channel.group.run(op, inp, out, **rest)
                for finish in after:
                    finish()
                self._metrics.ended(op, size, begun)
                return Done(result)
            request = channel.last = channel.group.start(op, inp, out, hold=(keep, result), **rest)
        except Error as e:
            self._metrics.failed(op)
            raise self._named(e) from None
        note = self._metrics.noting(op, size, begun)
        return self._noted(Work(request, result, _all(after), note, channel.turns))

    def _noted(self, work: Work) -> Work:
        if self._pending is not None:
            self._pending.append(work)
        return work

    def _go_on_device(
        self,
        op: str,
        tensors: list[torch.Tensor],
        now: bool,
        result: Any,
        buffers: tuple[T.Given | None, T.Given | None],
        keep: Any,
        after: Sequence[T.Finish],
        begun: int,
        size: int,
        rest: dict[str, Any],
    ) -> _c10d.Work:
        """As `_go`, with the tensors of a CUDA device."""
        lane = self._lane(op, tensors[0].device)
        if now:
            lane.group.run(op, *buffers, place=lane.here(), **rest)
            for finish in after:
                finish()
            self._metrics.ended(op, size, begun)
            return Done(result)
        event = cuda.Event(lane.device.index)
        request = lane.last = lane.group.start(
            op, *buffers, hold=(keep, result), place=lane.behind(tensors), event=event, **rest
        )
        note = self._metrics.noting(op, size, begun)
        return self._noted(cuda.CudaWork(request, result, _all(after), note, lane, event))

    def _named(self, e: Error) -> Error:
        """The same error; a broken rule also names the rank."""
        if isinstance(e, Misuse) and e.rank is None and not str(e).startswith("rank "):
            return Misuse(f"rank {self._rank}: {e}", self._rank, e.call, e.cause)
        return e

    def _several(self, works: list[_c10d.Work], result: Any) -> _c10d.Work:
        """One work out of those of a call's parts."""
        if len(works) == 1:
            return works[0]
        if all(isinstance(w, Done) for w in works):
            return Done(result)
        return cuda.together(works, result) or Work(Several(works), result, turns=turns.together(works))

    def _reduction(self, opts: Any, op: str) -> tuple[str, Any]:
        """The reduction's name, and what inputs are multiplied with before."""
        red = getattr(opts, "reduceOp", opts)
        kind = getattr(red, "op", red)
        name = _REDUCTIONS.get(kind)
        if name is None:
            raise Misuse(f"rank {self._rank}: {op} knows no reduction {red!r}", self._rank, op)
        return name, _factor(red) if kind == _KINDS.PREMUL_SUM else None

    def _one(self, items: Sequence[Any], op: str) -> Any:
        if len(items) != 1:
            raise Misuse(
                f"rank {self._rank}: {op} takes one tensor per call, not {len(items)}", self._rank, op
            )
        return items[0]

    def _check(self, op: str, *tensors: torch.Tensor) -> None:
        for t in tensors:
            T.check(t, op, self._rank)

    # -- all_reduce, reduce, broadcast

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = _NO_OPTIONS) -> _c10d.Work:
        t = self._one(tensors, "all_reduce")
        if t.is_sparse:
            return self.allreduce_sparse(tensors, opts)
        self._check("all_reduce", t)
        reduce, factor = self._reduction(opts, "all_reduce")
        if factor is not None:
            t.detach().mul_(factor)
        if self._codec is not None and self._codec.takes(t, reduce):
            return self._codec.all_reduce(self, t, reduce, opts, tensors)
        after: list[T.Finish] = []
        c = T.place(t, after)
        return self._go(
            "all_reduce",
            opts,
            tensors,
            None,
            T.reduced(c, reduce, "all_reduce", self._rank),
            c,
            after,
            reduce=reduce,
        )

    def allreduce_sparse(self, tensors: list[torch.Tensor], opts: Any = _NO_OPTIONS) -> _c10d.Work:
        """The sum of sparse tensors: their entries are gathered, and added up by each rank."""
        t = self._one(tensors, "all_reduce").detach()
        reduce, _ = self._reduction(opts, "all_reduce")
        if reduce != "sum" or t.layout is not torch.sparse_coo:
            raise Misuse(
                f"rank {self._rank}: all_reduce of sparse tensors can only sum sparse_coo",
                self._rank,
                "all_reduce",
            )
        t = t.coalesce()
        n = torch.tensor([t._nnz()])
        counts = torch.empty(self._size, dtype=torch.int64)
        at = {"device": t.device}
        now = _c10d.AllgatherOptions()
        now.asyncOp = False
        self.all_gather_single(counts, n, now)
        # indices come as (dimension, entry); entries must lie together
        ours = t.indices().t().contiguous()
        indices = [torch.empty(c, ours.shape[1], dtype=torch.int64, **at) for c in counts.tolist()]
        values = [torch.empty((c, *t.values().shape[1:]), dtype=t.dtype, **at) for c in counts.tolist()]
        self.allgather([indices], [ours], now)
        self.allgather([values], [t.values()], now)
        total = torch.sparse_coo_tensor(torch.cat(indices).t(), torch.cat(values), t.shape).coalesce()
        with torch.no_grad():
            tensors[0].copy_(total)
        return Done(tensors)

    @_in_block
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = _NO_OPTIONS) -> _c10d.Work:
        """As `allreduce` of each tensor; small ones of one type share a call."""
        works, together = [], {}
        for t in tensors:
            self._check("all_reduce", t)
            small = t.numel() * t.element_size() < _TOGETHER
            if small and len(tensors) > 1:
                together.setdefault((t.dtype, t.device), []).append(t)
            else:
                works.append(self.allreduce([t], opts))
        for parts in together.values():
            works.append(self._allreduce_joined(parts, opts))
        return self._several(works, tensors) if works else Done(tensors)

    def _allreduce_joined(self, parts: list[torch.Tensor], opts: Any) -> _c10d.Work:
        reduce, factor = self._reduction(opts, "all_reduce")
        after: list[T.Finish] = []
        flat = T.spread(parts, after)
        if after:
            torch.cat([T.contents(p).reshape(-1) for p in parts], out=flat)
        if factor is not None:
            flat.mul_(factor)
        given = T.reduced(flat, reduce, "all_reduce", self._rank)
        return self._go("all_reduce", opts, parts, None, given, flat, after, reduce=reduce)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> _c10d.Work:
        t = self._one(tensors, "reduce")
        self._check("reduce", t)
        reduce, factor = self._reduction(opts, "reduce")
        after: list[T.Finish] = []
        c = T.place(t, after)
        if factor is not None:
            # Only the root's tensor may change.
            c = (T.contents(t) * factor) if self._rank != opts.rootRank else c.mul_(factor)
        if self._rank != opts.rootRank:
            after = []
        given = T.reduced(c, reduce, "reduce", self._rank)
        return self._go("reduce", opts, tensors, None, given, c, after, reduce=reduce, root=opts.rootRank)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> _c10d.Work:
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        works = []
        for t in tensors:
            self._check("broadcast", t)
            after: list[T.Finish] = []
            c = T.place(t, after, read=self._rank == root)
            works.append(self._go("broadcast", opts, tensors, None, T.moved(c), c, after, root=root))
        return self._several(works, tensors)

    # -- gathering

    def allgather(
        self, outs: list[list[torch.Tensor]], ins: list[torch.Tensor], opts: Any = None
    ) -> _c10d.Work:
        if len(outs) != len(ins):
            raise Misuse(
                f"rank {self._rank}: all_gather got {len(ins)} inputs and {len(outs)} lists",
                self._rank,
                "all_gather",
            )
        works = [self._allgather_one(o, i, opts, outs) for o, i in zip(outs, ins, strict=True)]
        return self._several(works, outs)

    def allgather_coalesced(
        self, outs: list[list[torch.Tensor]], ins: list[torch.Tensor], opts: Any = None
    ) -> _c10d.Work:
        """Gathers each input. The lists are by rank: `outs[r][i]` is for what rank r gives as `ins[i]`."""
        op = "all_gather"
        self._parts(outs, op, "lists of tensors to gather into")
        for r, parts in enumerate(outs):
            if len(parts) != len(ins):
                words = f"the list for rank {r} has {len(parts)} tensors, and there are {len(ins)} inputs"
                raise Misuse(f"rank {self._rank}: {op}: {words}", self._rank, op)
        # What is refused is refused before the first part is on its way.
        for i, t in enumerate(ins):
            tensors = [t, *(parts[i] for parts in outs)]
            self._check(op, *tensors)
            T.alike(tensors, op, self._rank)
        works = [self._allgather_one([parts[i] for parts in outs], t, opts, outs) for i, t in enumerate(ins)]
        return self._several(works, outs) if works else Done(outs)

    def _allgather_one(self, outs: list[torch.Tensor], t: torch.Tensor, opts: Any, result: Any) -> _c10d.Work:
        self._check("all_gather", t, *outs)
        self._parts(outs, "all_gather", "tensors to gather into")
        T.alike([t, *outs], "all_gather", self._rank)
        after: list[T.Finish] = []
        flat, c, k = T.spread(outs, after), T.contents(t), T.scale(t)
        counts = [o.numel() * k for o in outs]
        uneven = {"counts": counts} if len(set(counts)) > 1 else {}
        return self._go("all_gather", opts, result, T.moved(c), T.moved(flat), (c, flat), after, **uneven)

    def all_gather_single(self, out: torch.Tensor, inp: torch.Tensor, opts: Any = None) -> _c10d.Work:
        self._check("all_gather", out, inp)
        T.alike([out, inp], "all_gather", self._rank)
        self._times("all_gather", "output", out, "input", inp)
        after: list[T.Finish] = []
        o, i = T.place(out, after, read=False), T.contents(inp)
        return self._go("all_gather", opts, [out], T.moved(i), T.moved(o), (o, i), after)

    _allgather_base = all_gather_single

    @_in_block
    def all_gather_single_coalesced(
        self, outs: list[torch.Tensor], ins: list[torch.Tensor], opts: Any = None
    ) -> _c10d.Work:
        works = [self.all_gather_single(o, i, opts) for o, i in zip(outs, ins, strict=True)]
        return self._several(works, outs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outs: list[list[torch.Tensor]], ins: list[torch.Tensor], opts: Any) -> _c10d.Work:
        t = self._one(ins, "gather")
        after: list[T.Finish] = []
        self._check("gather", t)
        c, out, keep = T.contents(t), None, None
        if self._rank == opts.rootRank:
            parts = self._one(outs, "gather")
            self._check("gather", *parts)
            self._parts(parts, "gather", "tensors to gather into")
            T.alike([t, *parts], "gather", self._rank)
            keep = T.spread(parts, after)
            out = T.moved(keep)
        return self._go("gather", opts, outs, T.moved(c), out, (c, keep), after, root=opts.rootRank)

    def gather_single(self, out: torch.Tensor, inp: torch.Tensor, opts: Any) -> _c10d.Work:
        self._check("gather", inp)
        after: list[T.Finish] = []
        c, given, keep = T.contents(inp), None, None
        if self._rank == opts.rootRank:
            self._check("gather", out)
            keep = T.place(out, after, read=False)
            given = T.moved(keep)
        return self._go("gather", opts, [out], T.moved(c), given, (c, keep), after, root=opts.rootRank)

    def scatter(self, outs: list[torch.Tensor], ins: list[list[torch.Tensor]], opts: Any) -> _c10d.Work:
        t = self._one(outs, "scatter")
        self._check("scatter", t)
        after: list[T.Finish] = []
        o, inp, keep = T.place(t, after, read=False), None, None
        if self._rank == opts.rootRank:
            parts = self._one(ins, "scatter")
            self._check("scatter", *parts)
            self._parts(parts, "scatter", "tensors to scatter")
            T.alike([t, *parts], "scatter", self._rank)
            keep = T.joined(parts)
            inp = T.moved(keep)
        return self._go("scatter", opts, outs, inp, T.moved(o), (o, keep), after, root=opts.rootRank)

    def _parts(self, parts: Sequence[torch.Tensor], op: str, what: str) -> None:
        if len(parts) != self._size:
            raise Misuse(
                f"rank {self._rank}: {op} needs {self._size} {what}, one per rank, not {len(parts)}",
                self._rank,
                op,
            )

    def _times(self, op: str, what: str, large: torch.Tensor, other: str, small: torch.Tensor) -> None:
        if large.numel() != self._size * small.numel():
            words = f"the {what} has {large.numel()} elements, not {self._size} times the {small.numel()} of the {other}"
            raise Misuse(f"rank {self._rank}: {op}: {words}", self._rank, op)

    # -- reduce_scatter

    def reduce_scatter(
        self, outs: list[torch.Tensor], ins: list[list[torch.Tensor]], opts: Any
    ) -> _c10d.Work:
        if len(outs) != len(ins):
            op = "reduce_scatter"
            raise Misuse(
                f"rank {self._rank}: {op} got {len(outs)} outputs and {len(ins)} lists", self._rank, op
            )
        works = []
        for out, parts in zip(outs, ins, strict=True):
            self._check("reduce_scatter", out, *parts)
            self._parts(parts, "reduce_scatter", "tensors to reduce")
            T.alike([out, *parts], "reduce_scatter", self._rank)
            counts = [p.numel() for p in parts]
            works.append(self._scatter_reduced(out, T.joined(parts), opts, outs, counts))
        return self._several(works, outs)

    def reduce_scatter_single(self, out: torch.Tensor, inp: torch.Tensor, opts: Any) -> _c10d.Work:
        self._check("reduce_scatter", out, inp)
        T.alike([out, inp], "reduce_scatter", self._rank)
        self._times("reduce_scatter", "input", inp, "output", out)
        return self._scatter_reduced(out, T.contents(inp), opts, [out], [])

    _reduce_scatter_base = reduce_scatter_single

    @_in_block
    def reduce_scatter_single_coalesced(
        self, outs: list[torch.Tensor], ins: list[torch.Tensor], opts: Any
    ) -> _c10d.Work:
        works = [self.reduce_scatter_single(o, i, opts) for o, i in zip(outs, ins, strict=True)]
        return self._several(works, outs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_reduced(
        self, out: torch.Tensor, inp: torch.Tensor, opts: Any, result: Any, counts: list[int]
    ) -> _c10d.Work:
        reduce, factor = self._reduction(opts, "reduce_scatter")
        if factor is not None:
            inp = inp * factor
        after: list[T.Finish] = []
        o = T.place(out, after, read=False)
        given = [T.reduced(x, reduce, "reduce_scatter", self._rank) for x in (inp, o)]
        k = given[1][2] // o.numel() if o.numel() else 1
        uneven = {"counts": [c * k for c in counts]} if len(set(counts)) > 1 else {}
        return self._go("reduce_scatter", opts, result, *given, (inp, o), after, reduce=reduce, **uneven)

    # -- all_to_all

    def all_to_all_single(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_split: list[int],
        in_split: list[int],
        opts: Any = None,
    ) -> _c10d.Work:
        self._check("all_to_all", out, inp)
        T.alike([out, inp], "all_to_all", self._rank)
        after: list[T.Finish] = []
        o, i = T.place(out, after, read=False), T.contents(inp)
        split = {}
        if out_split or in_split:
            split = {
                "counts": self._split(i, in_split, "input"),
                "recv_counts": self._split(o, out_split, "output"),
            }
        return self._go("all_to_all", opts, [out], T.moved(i), T.moved(o), (o, i), after, **split)

    alltoall_base = all_to_all_single

    def _split(self, t: torch.Tensor, split: Sequence[int], what: str) -> list[int]:
        """Elements per rank, from rows per rank."""
        rows = t.shape[0] if t.dim() else 0
        if not split:
            split = [rows // self._size] * self._size
        if sum(split) != rows or len(split) != self._size:
            words = (
                f"the {what} has {rows} rows, and its split sizes for {self._size} ranks are {list(split)}"
            )
            raise Misuse(f"rank {self._rank}: all_to_all: {words}", self._rank, "all_to_all")
        row = t.numel() // rows * T.scale(t) if rows else 0
        return [s * row for s in split]

    def alltoall(self, outs: list[torch.Tensor], ins: list[torch.Tensor], opts: Any = None) -> _c10d.Work:
        self._check("all_to_all", *outs, *ins)
        self._parts(outs, "all_to_all", "outputs")
        self._parts(ins, "all_to_all", "inputs")
        T.alike([*outs, *ins], "all_to_all", self._rank)
        after: list[T.Finish] = []
        flat, c = T.spread(outs, after), T.joined(ins)
        k = T.scale(ins[0])
        split = {"counts": [t.numel() * k for t in ins], "recv_counts": [t.numel() * k for t in outs]}
        return self._go("all_to_all", opts, outs, T.moved(c), T.moved(flat), (c, flat), after, **split)

    # -- barriers

    def barrier(self, opts: Any = None) -> _c10d.Work:
        self._settle()
        return self._go("barrier", opts, [])

    # -- several calls at once

    def start_coalescing(self, *_: Any) -> None:
        self._pending = []

    def end_coalescing(self, *_: Any) -> _c10d.Work:
        works, self._pending = self._pending or [], None
        return self._several(works, [])

    # -- send and recv, which move host memory: that of CUDA tensors by way of it

    @_in_block
    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> _c10d.Work:
        t = self._one(tensors, "send")
        self._check("send", t)
        c = T.hosted(t)
        return self._post("send", self._mail("send", dst).send(dst, tag, c), tensors, c, [])

    @_in_block
    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> _c10d.Work:
        t = self._one(tensors, "recv")
        self._check("recv", t)
        after: list[T.Finish] = []
        c = T.host_place(t, after)
        return self._post("recv", self._mail("recv", src).recv(src, tag, c), tensors, c, after)

    @_in_block
    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> _c10d.Work:
        t = self._one(tensors, "recv")
        self._check("recv", t)
        after: list[T.Finish] = []
        c = T.host_place(t, after)
        request = self._mail("recv", None).recv(None, tag, c)
        after.append(lambda: shims.note_source(t.data_ptr(), request.source))
        return self._post("recv", request, tensors, c, after)

    def _post(self, op: str, request: Any, result: Any, c: torch.Tensor, after: list[T.Finish]) -> _c10d.Work:
        size = c.numel() * c.element_size()
        note = self._metrics.noting(op, size, perf_counter_ns())
        return self._noted(Work(request, result, _all(after), note))


def _all(after: Sequence[T.Finish]) -> T.Finish | None:
    if not after:
        return None

    def run() -> None:
        for finish in after:
            finish()

    return run


def _factor(red: Any) -> Any:
    """What PREMUL_SUM multiplies with, which torch keeps in the pickled form only."""
    state = red.__getstate__()
    return state[1]
