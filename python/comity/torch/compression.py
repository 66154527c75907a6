"""Smaller forms of what `all_reduce` sends: half precision, blocks of 8-bit integers, the largest elements only.

They apply to sums and averages of float32. Each loses something: see the classes. All ranks of a group must use the same one. In host
memory halves and integers are wires of the core, which rounds each contribution once and the sum once more.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from comity._core import Args
from comity.errors import ConfigError

from .calls import Call
from .tensors import Finish, contents, moved, place, reduced, write

#: Elements that share a scale in `Int8`, and its codes: as the core's.
BLOCK = 256
LARGEST, INFINITY, NOT_A_NUMBER = 126, 127, -128


class Codec:
    """A form, for tensors of `threshold` bytes and more."""

    #: The core's wire that is this form, in host memory; None where there is none.
    wire: str | None = None

    def __init__(self, threshold: int = 0) -> None:
        self.threshold = threshold

    def takes(self, t: torch.Tensor, reduce: str) -> bool:
        return (
            t.dtype is torch.float32
            and reduce in ("sum", "avg")
            and t.numel() * 4 >= self.threshold
            and t.layout is torch.strided
        )

    def all_reduce(self, group: Any, t: torch.Tensor, reduce: str, opts: Any, result: Any) -> Any:
        """Make the call on `group`, whose result lands in `t`."""
        if self.wire is None or t.is_cuda:
            return self.without_wire(group, t, reduce, opts, result)
        after: list[Finish] = []
        memory = place(t, after)
        output = reduced(memory, reduce, "all_reduce", group._rank)
        args = Args(reduce=reduce, wire=self.wire)
        return group._call(Call("all_reduce", opts, result, None, output, args, memory, after))

    def without_wire(self, group: Any, t: torch.Tensor, reduce: str, opts: Any, result: Any) -> Any:
        """As `all_reduce`, by calls on what this form makes of `t`."""
        raise NotImplementedError


class Half(Codec):
    """Elements as float16 or bfloat16 on the wire; the sum is rounded to it as well. Values beyond 65,504 become infinite in
    float16, also sums."""

    def __init__(self, dtype: torch.dtype, threshold: int = 0) -> None:
        super().__init__(threshold)
        self.dtype = dtype
        self.wire = "f16" if dtype is torch.float16 else "bf16"

    def without_wire(self, group: Any, t: torch.Tensor, reduce: str, opts: Any, result: Any) -> Any:
        small = t.detach().to(self.dtype).contiguous()
        device = group._device_for("all_reduce", small)
        return device.call_then("allreduce", ([small], opts), [lambda: write(t, small)], result)


class _Gathered(Codec):
    """A form that cannot be added up on the way: every rank gets all parts, and adds them up in the order of ranks."""

    def without_wire(self, group: Any, t: torch.Tensor, reduce: str, opts: Any, result: Any) -> Any:
        flat = contents(t).reshape(-1)
        mine = self.pack(flat, t)
        all_parts = torch.empty(group._size * mine.numel(), dtype=torch.uint8, device=mine.device)

        def finish() -> None:
            total = torch.zeros_like(flat)
            for part in all_parts.view(group._size, -1):
                self.add(total, part)
            if reduce == "avg":
                total /= group._size
            write(t, total.view(t.shape))

        if mine.is_cuda:
            gather = _c10d.AllgatherOptions()
            gather.asyncOp = opts.asyncOp
            device = group._device_for("all_reduce", mine)
            return device.call_then("_allgather_base", (all_parts, mine, gather), [finish], result)
        keep = (mine, all_parts)
        return group._call(
            Call("all_gather", opts, result, moved(mine), moved(all_parts), None, keep, [finish])
        )

    def pack(self, flat: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """The bytes of `flat`; their number follows from its length alone."""
        raise NotImplementedError

    def add(self, total: torch.Tensor, part: torch.Tensor) -> None:
        raise NotImplementedError


class Int8(_Gathered):
    """Blocks of 256 elements as 8-bit integers and a scale: an element is off by up to 1/251 of its block's largest. Of CUDA tensors each
    rank sends a quarter of its bytes to every other one, which pays for up to 8 ranks."""

    wire = "int8"

    def pack(self, flat: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        n = flat.numel()
        blocks = torch.nn.functional.pad(flat, (0, -n % BLOCK)).view(-1, BLOCK)
        finite = blocks.isfinite()
        numbers = torch.where(finite, blocks, 0.0)
        scale = numbers.abs().amax(dim=1) / LARGEST
        # A block of zeros has none.
        by = torch.where(scale > 0, scale, 1.0)
        codes = (numbers / by[:, None]).round_().clamp_(-LARGEST, LARGEST)
        codes = torch.where(finite, codes, torch.nan_to_num(blocks, NOT_A_NUMBER, INFINITY, -INFINITY))
        return torch.cat(
            [scale.view(torch.uint8).reshape(-1), codes.to(torch.int8).view(torch.uint8).reshape(-1)]
        )

    def add(self, total: torch.Tensor, part: torch.Tensor) -> None:
        n = total.numel()
        blocks = math.ceil(n / BLOCK)
        scale = part[: 4 * blocks].clone().view(torch.float32)
        codes = part[4 * blocks :].view(torch.int8).view(blocks, BLOCK)
        values = codes * scale[:, None]
        for code, special in ((INFINITY, torch.inf), (-INFINITY, -torch.inf), (NOT_A_NUMBER, torch.nan)):
            values.masked_fill_(codes == code, special)
        total += values.view(-1)[:n]


class TopK(_Gathered):
    """The largest elements by magnitude, a share `ratio` of them. What is not sent is added to the next tensor that comes from the
    same memory (or under the same key, in the hook): nothing is lost for good, only late."""

    def __init__(self, ratio: float = 0.01, threshold: int = 0) -> None:
        super().__init__(threshold)
        if not 0 < ratio <= 1:
            raise ConfigError(
                f"the share of elements that top-k compression sends is above 0 and at most 1, not {ratio}"
            )
        self.ratio = ratio
        self._rest: dict[Any, tuple[weakref.ref[Any] | None, torch.Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # What comes from memory of this process means nothing elsewhere.
        return self.__dict__ | {"_rest": {k: v for k, v in self._rest.items() if v[0] is None}}

    def pack(self, flat: torch.Tensor, key: Any) -> torch.Tensor:
        rest = self._feedback(flat, key)
        rest += flat
        k = min(max(1, round(flat.numel() * self.ratio)), flat.numel())
        at = torch.topk(rest.abs(), k, sorted=False).indices
        values = rest[at]
        rest[at] = 0
        return torch.cat([at.to(torch.int32).view(torch.uint8), values.view(torch.uint8)])

    def add(self, total: torch.Tensor, part: torch.Tensor) -> None:
        half = part.numel() // 2
        at = part[:half].clone().view(torch.int32).long()
        total.index_add_(0, at, part[half:].clone().view(torch.float32))

    def _feedback(self, flat: torch.Tensor, key: Any) -> torch.Tensor:
        """What was not sent for this key before."""
        storage = None
        if isinstance(key, torch.Tensor):
            storage = key.untyped_storage()
            key = (storage.data_ptr(), key.storage_offset(), key.numel())
        known = self._rest.get(key)
        if known is not None and known[1].numel() == flat.numel():
            alive = known[0]
            if alive is None or alive() is storage:
                return known[1]
        alive = None
        if storage is not None:
            # Memory is given out again: what a dead tensor left is not for the next one there.
            rests = self._rest

            def forget(died: weakref.ref[Any]) -> None:
                if (known := rests.get(key)) is not None and known[0] is died:
                    del rests[key]

            alive = weakref.ref(storage, forget)
        rest = torch.zeros_like(flat)
        self._rest[key] = (alive, rest)
        return rest


_FORMS: dict[str, Callable[[float, int], Codec]] = {
    "fp16": lambda _, threshold: Half(torch.float16, threshold),
    "bf16": lambda _, threshold: Half(torch.bfloat16, threshold),
    "int8": lambda _, threshold: Int8(threshold),
    "topk": TopK,
}


def codec(name: str | None, ratio: float, threshold: int) -> Codec | None:
    """The form of this name."""
    if name in (None, "", "none"):
        return None
    form = _FORMS.get(name)
    if form is None:
        raise ConfigError(f"there is no compression {name!r}; there are {', '.join(_FORMS)}")
    return form(ratio, threshold)
