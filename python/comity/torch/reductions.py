"""Reductions of c10d on a group of the core: all_reduce, reduce and reduce_scatter, with torch's names and parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from comity._core import Args

from . import tracing
from .calls import Call, Calls, in_block
from .device import UNTAKEN
from .tensors import Finish, alike, contents, joined, moved, place, reduced, simple, spread, write
from .work import Done

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
#: The arguments of calls with nothing but a reduction, which share them.
REDUCED = {name: Args(reduce=name) for name in _REDUCTIONS.values()}
#: The same by torch's kind, of those that do nothing else.
_PLAIN = {kind: REDUCED[name] for kind, name in _REDUCTIONS.items() if kind != _KINDS.PREMUL_SUM}
_SUM = REDUCED["sum"]
_NO_OPTIONS = _c10d.AllreduceOptions()
#: In `allreduce_coalesced`, tensors below this many bytes share one call.
_TOGETHER = 1 << 20


class Reductions(Calls):
    """The calls that combine elements. `MisuseError`, with this rank, for tensors, types and reductions that Comity does not take."""

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = _NO_OPTIONS) -> _c10d.Work | None:
        """None where the call has ended and torch needs no more than that."""
        device = self._device
        if device is not None and (work := device.all_reduce(tensors, opts)) is not UNTAKEN:
            return work
        if len(tensors) == 1 and not getattr(opts, "asyncOp", True) and self._codec is None:
            memory = simple(tensors[0])
            if memory is not None:
                reduce_op = opts.reduceOp
                # Sums first: it takes as long to learn which reduction any other is.
                args = _SUM if reduce_op == _KINDS.SUM else _PLAIN.get(reduce_op.op)
                if args is not None:
                    return self._now("all_reduce", opts, tensors, memory, args)
        return self._allreduce(tensors, opts)

    def _allreduce(self, tensors: list[torch.Tensor], opts: Any) -> _c10d.Work:
        tensor = self._one(tensors, "all_reduce")
        if tensor.is_sparse:
            return self.allreduce_sparse(tensors, opts)
        if tensor.is_cuda and not (
            self._codec and self._codec.takes(tensor, self._reduction(opts, "all_reduce")[0])
        ):
            device = self._device_for("all_reduce", tensor)
            return tracing.untraced(device.call)("allreduce", [tensor], _options(opts))
        self._check("all_reduce", tensor)
        reduce, factor = self._reduction(opts, "all_reduce")
        if factor is not None:
            write(tensor, tensor.detach() * factor)
        if self._codec is not None and self._codec.takes(tensor, reduce):
            return self._codec.all_reduce(self, tensor, reduce, opts, tensors)
        after: list[Finish] = []
        memory = place(tensor, after)
        output = reduced(memory, reduce, "all_reduce", self._rank)
        return self._call(Call("all_reduce", opts, tensors, None, output, REDUCED[reduce], memory, after))

    def allreduce_sparse(self, tensors: list[torch.Tensor], opts: Any = _NO_OPTIONS) -> _c10d.Work:
        """The sum of sparse tensors: their entries are gathered, and added up by each rank."""
        tensor = self._one(tensors, "all_reduce").detach()
        reduce, _ = self._reduction(opts, "all_reduce")
        if reduce != "sum" or tensor.layout is not torch.sparse_coo:
            raise self._misuse("all_reduce", "all_reduce of sparse tensors can only sum sparse_coo")
        tensor = tensor.coalesce()
        counts = torch.empty(self._size, dtype=torch.int64)
        now = _c10d.AllgatherOptions()
        now.asyncOp = False
        own = torch.tensor([tensor._nnz()])
        # The first of several calls, which no other rank's single call matches.
        args = Args(objects=True)
        self._call(Call("all_gather", now, [counts], moved(own), moved(counts), args, (own, counts)))
        # indices come as (dimension, entry); entries must lie together
        own_indices, own_values = tensor.indices().t().contiguous(), tensor.values()
        on = {"device": tensor.device}
        indices = [torch.empty(n, own_indices.shape[1], dtype=torch.int64, **on) for n in counts.tolist()]
        values = [torch.empty((n, *own_values.shape[1:]), dtype=tensor.dtype, **on) for n in counts.tolist()]
        self.allgather([indices], [own_indices], now)
        self.allgather([values], [own_values], now)
        total = torch.sparse_coo_tensor(torch.cat(indices).t(), torch.cat(values), tensor.shape).coalesce()
        with torch.no_grad():
            tensors[0].copy_(total)
        return Done(tensors)

    @in_block
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = _NO_OPTIONS) -> _c10d.Work:
        """As `allreduce` of each tensor; small ones of one type share a call."""
        works, together = [], {}
        for tensor in tensors:
            self._check("all_reduce", tensor)
            small = tensor.numel() * tensor.element_size() < _TOGETHER
            if small and len(tensors) > 1:
                together.setdefault((tensor.dtype, tensor.device), []).append(tensor)
            else:
                works.append(self._allreduce([tensor], opts))
        for parts in together.values():
            works.append(self._allreduce_joined(parts, opts))
        return self._several(works, tensors) if works else Done(tensors)

    def _allreduce_joined(self, parts: list[torch.Tensor], opts: Any) -> _c10d.Work:
        reduce, factor = self._reduction(opts, "all_reduce")
        after: list[Finish] = []
        flat = spread(parts, after)
        if after:
            torch.cat([contents(part).reshape(-1) for part in parts], out=flat)
        if factor is not None:
            write(flat, flat * factor)
        output = reduced(flat, reduce, "all_reduce", self._rank)
        return self._call(Call("all_reduce", opts, parts, None, output, REDUCED[reduce], flat, after))

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> _c10d.Work:
        tensor = self._one(tensors, "reduce")
        self._check("reduce", tensor)
        reduce, factor = self._reduction(opts, "reduce")
        after: list[Finish] = []
        memory = place(tensor, after)
        if factor is not None:
            # Only the root's tensor may change.
            is_root = self._rank == opts.rootRank
            if is_root:
                write(memory, memory * factor)
            else:
                memory = contents(tensor) * factor
        if self._rank != opts.rootRank:
            after = []
        output = reduced(memory, reduce, "reduce", self._rank)
        args = Args(reduce=reduce, root=opts.rootRank)
        return self._call(Call("reduce", opts, tensors, None, output, args, memory, after))

    def reduce_scatter(
        self, output_tensors: list[torch.Tensor], input_tensors: list[list[torch.Tensor]], opts: Any
    ) -> _c10d.Work:
        op = "reduce_scatter"
        if len(output_tensors) != len(input_tensors):
            words = f"{op} got {len(output_tensors)} outputs and {len(input_tensors)} lists"
            raise self._misuse(op, words)
        works = []
        for output, parts in zip(output_tensors, input_tensors, strict=True):
            self._check(op, output, *parts)
            self._check_parts(parts, op, "tensors to reduce")
            alike([output, *parts], op, self._rank)
            counts = [part.numel() for part in parts]
            works.append(self._reduce_scatter_flat(output, joined(parts), opts, output_tensors, counts))
        return self._several(works, output_tensors)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> _c10d.Work:
        self._check("reduce_scatter", output, input)
        alike([output, input], "reduce_scatter", self._rank)
        self._check_times("reduce_scatter", "input", input, "output", output)
        return self._reduce_scatter_flat(output, contents(input), opts, [output], [])

    _reduce_scatter_base = reduce_scatter_single

    @in_block
    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> _c10d.Work:
        pairs = zip(outputs, inputs, strict=True)
        # Not by way of `self`: these are parts of one call.
        works = [Reductions.reduce_scatter_single(self, output, input, opts) for output, input in pairs]
        return self._several(works, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_flat(
        self, output: torch.Tensor, flat: torch.Tensor, opts: Any, result: Any, counts: list[int]
    ) -> _c10d.Work:
        """`flat`: all ranks' parts one after the other. `counts`: elements of each, or nothing where they are equal."""
        reduce, factor = self._reduction(opts, "reduce_scatter")
        if factor is not None:
            flat = flat * factor
        after: list[Finish] = []
        memory = place(output, after, read=False)
        source, target = (reduced(t, reduce, "reduce_scatter", self._rank) for t in (flat, memory))
        args = REDUCED[reduce]
        if len(set(counts)) > 1:
            # The core may count two elements for one of torch's.
            scale = target[2] // output.numel() if output.numel() else 1
            args = Args(reduce=reduce, counts=[count * scale for count in counts])
        return self._call(Call("reduce_scatter", opts, result, source, target, args, (flat, memory), after))

    def _reduction(self, opts: Any, op: str) -> tuple[str, Any]:
        """The reduction's name, and what inputs are multiplied with before."""
        reduce_op = getattr(opts, "reduceOp", opts)
        kind = getattr(reduce_op, "op", reduce_op)
        name = _REDUCTIONS.get(kind)
        if name is None:
            raise self._misuse(op, f"{op} knows no reduction {reduce_op!r}")
        return name, _factor(reduce_op) if kind == _KINDS.PREMUL_SUM else None


def _options(opts: Any) -> Any:
    """Options, of which a caller may give the reduction alone."""
    if hasattr(opts, "reduceOp"):
        return opts
    options = _c10d.AllreduceOptions()
    options.reduceOp = opts
    return options


def _factor(reduce_op: Any) -> Any:
    """What PREMUL_SUM multiplies with, which torch keeps in the pickled form only."""
    return reduce_op.__getstate__()[1]
