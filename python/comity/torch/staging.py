"""Tensors as NCCL takes them, and the work of a call that something follows on its stream (`device.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from .tensors import Finish, bare, write

_KINDS = _c10d.ReduceOp.RedOpType
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_INTS = {torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool}
#: Types that torch hands to NCCL in every version.
NATIVE = FLOATS | _INTS
#: What NCCL reduces integers with as Comity does.
_WHOLE = (_KINDS.SUM, _KINDS.PRODUCT, _KINDS.MIN, _KINDS.MAX)
#: Calls whose elements may differ between ranks.
_UNEQUAL = {"alltoall", "alltoall_base"}


class StreamWork(_c10d.Work):
    """Work whose last part is on the stream that was the caller's."""

    def __init__(self, result: Any, index: int) -> None:
        super().__init__()
        self._result = result
        self._index = index
        self._event = torch.cuda.current_stream(index).record_event()

    def wait(self, timeout: Any = None) -> bool:
        torch.cuda.current_stream(self._index).wait_event(self._event)
        return True

    def synchronize(self) -> None:
        self.wait()  # WAIT: nobody; the stream waits

    def is_completed(self) -> bool:
        return self._event.query()

    is_success = is_completed

    def exception(self) -> None:
        return None

    def get_future(self) -> torch.futures.Future:
        self.wait()  # WAIT: nobody; the stream waits
        future = torch.futures.Future(devices=[torch.device("cuda", self._index)])
        future.set_result(self._result)
        return future

    def result(self) -> list[torch.Tensor]:
        return list(self._result)

    def source_rank(self) -> int:
        return -1

    _source_rank = source_rank


def tensors_of(args: Sequence[Any]) -> list[torch.Tensor]:
    """The outputs and inputs of a call."""
    found: list[torch.Tensor] = []
    for given in args[:2]:
        # Asking whether something is a tensor takes long where it is none.
        if isinstance(given, (list, tuple)):
            for item in given:
                if isinstance(item, (list, tuple)):
                    found.extend(item)
                else:
                    found.append(item)
        elif isinstance(given, torch.Tensor):
            found.append(given)
    return found


def as_list(outputs: Any) -> Any:
    return [outputs] if isinstance(outputs, torch.Tensor) else outputs


def reduces(t: torch.Tensor, opts: Any) -> bool:
    """Whether NCCL has the reduction. For floats torch refuses those that it has not."""
    if t.dtype in FLOATS:
        return True
    reduce_op = getattr(opts, "reduceOp", opts)
    return t.dtype in _INTS and getattr(reduce_op, "op", reduce_op) in _WHOLE


def count_of(name: str, args: Sequence[Any]) -> int:
    """The elements of a call, a number that is the same on all ranks; 0 where there is none."""
    if name in _UNEQUAL:
        return 0
    given = args[1] if name in ("gather", "reduce_scatter", "_reduce_scatter_base") else args[0]
    return given.numel() if isinstance(given, torch.Tensor) else sum(t.numel() for t in tensors_of([given]))


def copied(given: Any, after: list[Finish], *, written: bool) -> Any:
    """Tensors as NCCL takes them: where they lie, or copies. `written`: they are copied back `after`."""
    if isinstance(given, (list, tuple)) and not (given and isinstance(given[0], int)):
        return [copied(g, after, written=written) for g in given]
    if not isinstance(given, torch.Tensor):
        return given
    copy = bare(given)
    if written and copy.data_ptr() != given.data_ptr():
        after.append(lambda: write(given, copy))
    if copy.dtype in NATIVE:
        return copy
    # One more dimension: the sizes of the others may matter.
    return torch.view_as_real(copy) if copy.is_complex() else copy.unsqueeze(-1).view(torch.uint8)


def hosted(given: Any, after: list[Finish], *, written: bool) -> Any:
    """As `_copied`, in host memory."""
    if isinstance(given, (list, tuple)):
        return [hosted(g, after, written=written) for g in given]
    if not isinstance(given, torch.Tensor):
        return given
    copy = given.detach().to("cpu", copy=True)
    if written:
        after.append(lambda: write(given, copy))
    return copy
