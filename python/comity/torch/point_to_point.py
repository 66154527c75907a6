"""send and recv of c10d, which move host memory: that of CUDA tensors by way of it. `mailbox.py` says how."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from .calls import Calls, all_of, in_block
from .tensors import Finish, host_place, hosted
from .work import Work


class PointToPoint(Calls):
    """The calls of two ranks. `MisuseError`, with this rank, for tensors and ranks that cannot be."""

    @in_block
    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int = 0) -> _c10d.Work:
        tensor = self._one(tensors, "send")
        self._check("send", tensor)
        memory = hosted(tensor)
        request = self._mail("send", dstRank).send(dstRank, tag, memory)
        return self._under_way("send", request, tensors, memory, [])

    @in_block
    def recv(self, tensors: list[torch.Tensor], srcRank: int | None, tag: int = 0) -> _c10d.Work:
        tensor = self._one(tensors, "recv")
        self._check("recv", tensor)
        after: list[Finish] = []
        memory = host_place(tensor, after)
        request = self._mail("recv", srcRank).recv(srcRank, tag, memory)
        return self._under_way("recv", request, tensors, memory, after)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> _c10d.Work:
        # Not by way of `self`: a device takes no such receive.
        return PointToPoint.recv(self, tensors, None, tag)

    def _under_way(
        self, op: str, request: Any, result: Any, memory: torch.Tensor, after: list[Finish]
    ) -> _c10d.Work:
        size = memory.numel() * memory.element_size()
        note = self._metrics.noting(op, size, perf_counter_ns())
        return self._noted(Work(request, result, all_of(after), note))
