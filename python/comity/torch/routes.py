"""Which calls go to the device: those on CUDA tensors. The others are calls of a group of the core."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from comity.errors import MisuseError

from . import tracing
from .collectives import Collectives
from .device import OPS, UNTAKEN

#: Methods, and the names that torch's process group over NCCL has for the same in every version.
_SAME = {"all_to_all_single": "alltoall_base"} | {
    name: name
    for name in ("broadcast", "reduce", "allgather", "gather", "scatter", "reduce_scatter", "alltoall")
}
#: Options that a caller may leave out.
_OPTIONS = {
    "broadcast": _c10d.BroadcastOptions,
    "allgather": _c10d.AllgatherOptions,
    "all_gather_single": _c10d.AllgatherOptions,
    "all_to_all_single": _c10d.AllToAllOptions,
    "alltoall": _c10d.AllToAllOptions,
}


def _first(args: Sequence[Any]) -> torch.Tensor | None:
    """The first tensor of a call."""
    for given in args[:2]:
        if isinstance(given, torch.Tensor):
            return given
        if isinstance(given, (list, tuple)) and (found := _first(given)) is not None:
            return found
    return None


class Routes(Collectives):
    """See the module."""

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        device = self._device
        if device is not None and (work := device.all_gather(output, input, opts)) is not UNTAKEN:
            return work
        return _all_gather_single(self, output, input, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        device = self._device
        if device is not None and (work := device.reduce_scatter(output, input, opts)) is not UNTAKEN:
            return work
        return _reduce_scatter_single(self, output, input, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        opts = opts or _c10d.AllreduceCoalescedOptions()
        if not (tensors and tensors[0].is_cuda):
            return super().allreduce_coalesced(tensors, opts)
        return self._device_for("all_reduce", tensors[0]).call("allreduce_coalesced", tensors, opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        if not (inputs and inputs[0].is_cuda):
            return super().all_gather_single_coalesced(outputs, inputs, opts)
        return self._together("_allgather_base", zip(outputs, inputs, strict=True), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Any:
        if not (inputs and inputs[0].is_cuda):
            return super().reduce_scatter_single_coalesced(outputs, inputs, opts)
        return self._together("_reduce_scatter_base", zip(outputs, inputs, strict=True), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def allgather_coalesced(
        self, output_lists: list[list[torch.Tensor]], input_list: list[torch.Tensor], opts: Any = None
    ) -> Any:
        if not (input_list and input_list[0].is_cuda):
            return super().allgather_coalesced(output_lists, input_list, opts)
        outputs = [[parts[i] for parts in output_lists] for i in range(len(input_list))]
        pairs = [([o], [i]) for o, i in zip(outputs, input_list, strict=True)]
        return self._together("allgather", pairs, opts)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        if not input.is_cuda:
            return super().gather_single(output, input, opts)
        outputs = [list(output.view(self._size, -1).unbind())] if self._rank == opts.rootRank else []
        return self._device_for("gather", input).call("gather", outputs, [input.reshape(-1)], opts)

    def _together(self, name: str, pairs: Any, opts: Any) -> Any:
        """Calls that go out as one."""
        opts = opts or _c10d.AllgatherOptions()
        device = None
        for output, given in pairs:
            if device is None:
                device = self._device_for(OPS[name], _first([given]))
                device.begin_block()
            try:
                device.call(name, output, given, opts)
            except Exception:
                device.end_block()
                raise
        return device.end_block()

    # -- blocks of calls, and the calls of two ranks

    def start_coalescing(self, *_: Any) -> None:
        super().start_coalescing()
        if self._device is not None:
            self._device.begin_block()

    def end_coalescing(self, *_: Any) -> Any:
        on_device = None if self._device is None else self._device.end_block()
        if on_device is not None and self._pending:
            self._pending = None
            words = "calls that are made together are all on CUDA tensors, or none is"
            raise MisuseError(f"rank {self._rank}: {words}", self._rank)
        works = super().end_coalescing()
        return works if on_device is None else on_device

    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int = 0) -> Any:
        if self._pending is None or not tensors[0].is_cuda:
            return super().send(tensors, dstRank, tag)
        return self._device_for("send", tensors[0]).move("send", tensors[0], dstRank)

    def recv(self, tensors: list[torch.Tensor], srcRank: int, tag: int = 0) -> Any:
        if self._pending is None or not tensors[0].is_cuda:
            return super().recv(tensors, srcRank, tag)
        return self._device_for("recv", tensors[0]).move("recv", tensors[0], srcRank)


def _routed(method: str, name: str) -> Callable[..., Any]:
    """The method, for tensors of both kinds."""
    host = getattr(Collectives, method)

    @functools.wraps(host)
    def call(self: Routes, *args: Any, **options: Any) -> Any:
        first = _first(args)
        if first is None or not first.is_cuda:
            return host(self, *args, **options)
        given = [*args, *options.values()]
        kind = _OPTIONS.get(method)
        if kind is not None and not isinstance(given[-1], kind):
            given = [*(a for a in given if a is not None), kind()]
        device = self._device_for(OPS[name], first)
        return tracing.untraced(device.call)(name, *given)

    return call


_all_gather_single = _routed("all_gather_single", "_allgather_base")
_reduce_scatter_single = _routed("reduce_scatter_single", "_reduce_scatter_base")
for _method, _name in _SAME.items():
    setattr(Routes, _method, _routed(_method, _name))
Routes._allgather_base = Routes.all_gather_single
Routes._reduce_scatter_base = Routes.reduce_scatter_single
Routes.alltoall_base = Routes.all_to_all_single
