"""Every collective of c10d on a group of the core: what torch's classes call, shared by `backend.py` and `process_group.py`.

Methods and parameters have torch's names. Here are those that move elements; `reductions.py` and `point_to_point.py` have the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from comity._core import Args

from .calls import Call, in_block
from .point_to_point import PointToPoint
from .reductions import Reductions
from .tensors import Finish, alike, contents, joined, moved, place, scale, spread
from .work import Done


class Collectives(Reductions, PointToPoint):
    """The calls. `MisuseError`, with this rank, for tensors and lists that cannot be; no element has moved then."""

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> _c10d.Work:
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        args = Args(root=root)
        works = []
        for tensor in tensors:
            self._check("broadcast", tensor)
            after: list[Finish] = []
            memory = place(tensor, after, read=self._rank == root)
            call = Call("broadcast", opts, tensors, None, moved(memory), args, memory, after)
            works.append(self._call(call))
        return self._several(works, tensors)

    # -- gather and scatter

    def allgather(
        self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor], opts: Any = None
    ) -> _c10d.Work:
        if len(output_tensors) != len(input_tensors):
            words = f"all_gather got {len(input_tensors)} inputs and {len(output_tensors)} lists"
            raise self._misuse("all_gather", words)
        pairs = zip(output_tensors, input_tensors, strict=True)
        works = [self._allgather_one(outputs, input, opts, output_tensors) for outputs, input in pairs]
        return self._several(works, output_tensors)

    def allgather_coalesced(
        self, output_lists: list[list[torch.Tensor]], input_list: list[torch.Tensor], opts: Any = None
    ) -> _c10d.Work:
        """Gathers each input. The lists are by rank: `output_lists[r][i]` is for what rank r gives as `input_list[i]`."""
        op = "all_gather"
        self._check_parts(output_lists, op, "lists of tensors to gather into")
        for rank, parts in enumerate(output_lists):
            if len(parts) != len(input_list):
                words = f"the list for rank {rank} has {len(parts)} tensors, and there are {len(input_list)} inputs"
                raise self._misuse(op, f"{op}: {words}")
        # What is refused is refused before the first part is on its way.
        outputs = [[parts[i] for parts in output_lists] for i in range(len(input_list))]
        for input, parts in zip(input_list, outputs, strict=True):
            self._check(op, input, *parts)
            alike([input, *parts], op, self._rank)
        pairs = zip(outputs, input_list, strict=True)
        works = [self._allgather_one(parts, input, opts, output_lists) for parts, input in pairs]
        return self._several(works, output_lists) if works else Done(output_lists)

    def _allgather_one(
        self, outputs: list[torch.Tensor], input: torch.Tensor, opts: Any, result: Any
    ) -> _c10d.Work:
        self._check("all_gather", input, *outputs)
        self._check_parts(outputs, "all_gather", "tensors to gather into")
        alike([input, *outputs], "all_gather", self._rank)
        after: list[Finish] = []
        flat, source = spread(outputs, after), contents(input)
        elements = scale(input)
        counts = [output.numel() * elements for output in outputs]
        args = Args(counts=counts) if len(set(counts)) > 1 else None
        return self._call(
            Call("all_gather", opts, result, moved(source), moved(flat), args, (source, flat), after)
        )

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _c10d.Work:
        self._check("all_gather", output, input)
        alike([output, input], "all_gather", self._rank)
        self._check_times("all_gather", "output", output, "input", input)
        after: list[Finish] = []
        target, source = place(output, after, read=False), contents(input)
        return self._call(
            Call("all_gather", opts, [output], moved(source), moved(target), None, (target, source), after)
        )

    _allgather_base = all_gather_single

    @in_block
    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> _c10d.Work:
        pairs = zip(outputs, inputs, strict=True)
        # Not by way of `self`: these are parts of one call.
        works = [Collectives.all_gather_single(self, output, input, opts) for output, input in pairs]
        return self._several(works, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor], opts: Any
    ) -> _c10d.Work:
        input = self._one(input_tensors, "gather")
        self._check("gather", input)
        after: list[Finish] = []
        source, flat = contents(input), None
        if self._rank == opts.rootRank:
            outputs = self._one(output_tensors, "gather")
            self._check("gather", *outputs)
            self._check_parts(outputs, "gather", "tensors to gather into")
            alike([input, *outputs], "gather", self._rank)
            flat = spread(outputs, after)
        return self._gather_into(source, flat, opts, output_tensors, after)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> _c10d.Work:
        self._check("gather", input)
        after: list[Finish] = []
        source, target = contents(input), None
        if self._rank == opts.rootRank:
            self._check("gather", output)
            target = place(output, after, read=False)
        return self._gather_into(source, target, opts, [output], after)

    def _gather_into(
        self, source: torch.Tensor, target: torch.Tensor | None, opts: Any, result: Any, after: list[Finish]
    ) -> _c10d.Work:
        """`target`: where all ranks' parts lie one after the other; the root's only."""
        args = Args(root=opts.rootRank)
        output = None if target is None else moved(target)
        return self._call(Call("gather", opts, result, moved(source), output, args, (source, target), after))

    def scatter(
        self, output_tensors: list[torch.Tensor], input_tensors: list[list[torch.Tensor]], opts: Any
    ) -> _c10d.Work:
        output = self._one(output_tensors, "scatter")
        self._check("scatter", output)
        after: list[Finish] = []
        target, flat, source = place(output, after, read=False), None, None
        if self._rank == opts.rootRank:
            inputs = self._one(input_tensors, "scatter")
            self._check("scatter", *inputs)
            self._check_parts(inputs, "scatter", "tensors to scatter")
            alike([output, *inputs], "scatter", self._rank)
            flat = joined(inputs)
            source = moved(flat)
        args = Args(root=opts.rootRank)
        return self._call(
            Call("scatter", opts, output_tensors, source, moved(target), args, (target, flat), after)
        )

    # -- all_to_all

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> _c10d.Work:
        self._check("all_to_all", output, input)
        alike([output, input], "all_to_all", self._rank)
        after: list[Finish] = []
        target, source = place(output, after, read=False), contents(input)
        args = None
        if output_split_sizes or input_split_sizes:
            args = Args(
                counts=self._split_elements(source, input_split_sizes, "input"),
                recv_counts=self._split_elements(target, output_split_sizes, "output"),
            )
        return self._call(
            Call("all_to_all", opts, [output], moved(source), moved(target), args, (target, source), after)
        )

    alltoall_base = all_to_all_single

    def _split_elements(self, tensor: torch.Tensor, split_sizes: Sequence[int], what: str) -> list[int]:
        """Elements per rank, from rows per rank."""
        rows = tensor.shape[0] if tensor.dim() else 0
        if not split_sizes:
            split_sizes = [rows // self._size] * self._size
        if sum(split_sizes) != rows or len(split_sizes) != self._size:
            words = f"the {what} has {rows} rows, and its split sizes for {self._size} ranks are {list(split_sizes)}"
            raise self._misuse("all_to_all", f"all_to_all: {words}")
        row = tensor.numel() // rows * scale(tensor) if rows else 0
        return [size * row for size in split_sizes]

    def alltoall(
        self, output_tensors: list[torch.Tensor], input_tensors: list[torch.Tensor], opts: Any = None
    ) -> _c10d.Work:
        self._check("all_to_all", *output_tensors, *input_tensors)
        self._check_parts(output_tensors, "all_to_all", "outputs")
        self._check_parts(input_tensors, "all_to_all", "inputs")
        alike([*output_tensors, *input_tensors], "all_to_all", self._rank)
        after: list[Finish] = []
        flat, source = spread(output_tensors, after), joined(input_tensors)
        elements = scale(input_tensors[0])
        args = Args(
            counts=[tensor.numel() * elements for tensor in input_tensors],
            recv_counts=[tensor.numel() * elements for tensor in output_tensors],
        )
        return self._call(
            Call("all_to_all", opts, output_tensors, moved(source), moved(flat), args, (source, flat), after)
        )

    # -- barriers

    def barrier(self, opts: Any = None) -> _c10d.Work:
        self._settle()
        return self._call(Call("barrier", opts, []))

    # -- several calls at once

    def start_coalescing(self, *_: Any) -> None:
        self._pending = []

    def end_coalescing(self, *_: Any) -> _c10d.Work:
        works, self._pending = self._pending or [], None
        return self._several(works, [])
