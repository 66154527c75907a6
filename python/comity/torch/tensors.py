"""Tensors as the addresses that `comity._core` takes, and the copies that some of them need.

A contiguous CPU or CUDA tensor is used where it lies, one of an Apple GPU where torch shows the host its memory (`mps.py`). Everything else
(strides, conjugates, lists of tensors that do not lie one after the other) goes through a copy in the same place (Apple GPUs: on the host),
which is written back when the call has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from comity import _core
from comity.errors import MisuseError

from . import mps

_D = _core.DTYPES

#: Types that the core reduces, by their number there.
NUMBERS: dict[torch.dtype, int] = {
    torch.bool: _D["bool"],
    torch.uint8: _D["u8"],
    torch.uint16: _D["u16"],
    torch.uint32: _D["u32"],
    torch.uint64: _D["u64"],
    torch.int8: _D["i8"],
    torch.int16: _D["i16"],
    torch.int32: _D["i32"],
    torch.int64: _D["i64"],
    torch.float16: _D["f16"],
    torch.bfloat16: _D["bf16"],
    torch.float32: _D["f32"],
    torch.float64: _D["f64"],
    torch.complex64: _D["c64"],
}
#: Types that torch can neither copy nor compute with: integers of fewer than 8 bits, each of which has a byte.
_AS_BYTES = {
    d for bits in range(1, 8) for kind in ("int", "uint") if (d := getattr(torch, f"{kind}{bits}", None))
}
_QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}
_BYTES = _D["u8"]
#: Bytes of an element, by number.
SIZES: list[int] = list(_core.SIZES)
_F64 = _D["f64"]
_C64 = _D["c64"]

#: An address, the number of its type, elements.
Buffer = tuple[int, int, int]
#: Devices whose memory calls take as it is.
_DIRECT = ("cpu", "cuda")
#: What is left to do when a call has ended.
Finish = Callable[[], None]


def plain(t: torch.Tensor) -> bool:
    """Whether the tensor can be used where it lies."""
    # A device says its type in Python five times as slowly.
    return (
        (t.is_cpu or t.device.type in _DIRECT)
        and t.layout is torch.strided
        and t.is_contiguous()
        and not t.is_neg()
        and not t.is_conj()
    )


def check(t: torch.Tensor, op: str, rank: int) -> None:
    """Refuse what no copy can mend."""
    if not isinstance(t, torch.Tensor):
        raise MisuseError(f"rank {rank}: {op} takes tensors, not {type(t).__name__}", rank, op)
    if not t.is_cpu and (kind := t.device.type) not in ("cuda", "mps"):
        raise MisuseError(
            f"rank {rank}: {op} got a tensor on {t.device}; the backend comity moves CPU and CUDA tensors: "
            f"name a backend for the other device as well, as in 'cpu:comity,{kind}:BACKEND'",
            rank,
            op,
        )
    if t.layout is not torch.strided:
        raise MisuseError(f"rank {rank}: {op} takes dense tensors, not {t.layout}; see to_dense()", rank, op)
    # Also one that is a view of another type: room for as many elements may be half of its bytes.
    if t.is_quantized or t.dtype in _QUANTIZED:
        words = f"{op} does not take quantized tensors ({t.dtype}); see int_repr() and dequantize()"
        raise MisuseError(f"rank {rank}: {words}", rank, op)
    if t.dtype in _AS_BYTES and "reduce" in op:
        raise MisuseError(
            f"rank {rank}: {op} cannot reduce elements of {t.dtype}; view them as another type", rank, op
        )


#: Classes of tensors that are nothing but their memory.
_OWN = (torch.Tensor, torch.nn.Parameter)


def simple(t: torch.Tensor) -> Buffer | None:
    """A tensor that calls of the core take as it is, in host memory: what nearly all small ones are. None where more has to be
    looked at, also where it has to be refused."""
    if type(t) not in _OWN:
        return None
    number = NUMBERS.get(t.dtype)
    if (
        number is None
        or not t.is_cpu
        or t.layout is not torch.strided
        or not t.is_contiguous()
        or t.is_neg()
        or (number == _C64 and t.is_conj())
    ):
        return None
    return t.data_ptr(), number, t.numel()


def moved(t: torch.Tensor) -> Buffer:
    """A plain tensor whose elements are only moved."""
    number = NUMBERS.get(t.dtype)
    count = t.numel()
    if number is None:
        return t.data_ptr(), _BYTES, count * t.element_size()
    return t.data_ptr(), number, count


def scale(t: torch.Tensor) -> int:
    """How many elements `moved` makes of one."""
    return 1 if t.dtype in NUMBERS else t.element_size()


def reduced(t: torch.Tensor, reduce: str, op: str, rank: int) -> Buffer:
    """A plain tensor whose elements are reduced."""
    number = NUMBERS.get(t.dtype)
    if number is not None:
        return t.data_ptr(), number, t.numel()
    if t.dtype is torch.complex128 and reduce in ("sum", "avg"):
        return t.data_ptr(), _F64, 2 * t.numel()
    raise MisuseError(
        f"rank {rank}: {op} cannot {reduce} elements of {t.dtype}; convert them first", rank, op
    )


def contents(t: torch.Tensor) -> torch.Tensor:
    """The tensor, or a plain copy to read from."""
    t = _movable(t.detach())
    if plain(t) or plain(t := _near(t)):
        return t
    return _home(t).resolve_conj().resolve_neg().contiguous()


def bare(t: torch.Tensor) -> torch.Tensor:
    """The tensor without gaps, as `contents` of one on a device."""
    return _movable(t.detach()).resolve_conj().resolve_neg().contiguous()


def _movable(t: torch.Tensor) -> torch.Tensor:
    """The tensor, as bytes where torch can do nothing else with its elements."""
    return t.view(torch.uint8) if t.dtype in _AS_BYTES else t


def _near(t: torch.Tensor) -> torch.Tensor:
    """A tensor of an Apple GPU as one of host memory, where it lies, if torch can show it; any other as it is."""
    seen = mps.shown(t) if t.device.type == "mps" else None
    return t if seen is None else seen


def _near_all(parts: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    if parts and parts[0].dtype in _AS_BYTES:
        parts = [_movable(p.detach()) for p in parts]
    return [_near(p.detach()) for p in parts] if parts and parts[0].device.type == "mps" else parts


def _home(t: torch.Tensor) -> torch.Tensor:
    return t if t.device.type in _DIRECT else t.cpu()


def _where(t: torch.Tensor) -> torch.device:
    """Where a copy of it belongs."""
    return t.device if t.device.type in _DIRECT else torch.device("cpu")


def place(t: torch.Tensor, after: list[Finish], *, read: bool = True) -> torch.Tensor:
    """The tensor, or a plain copy to write to, which is copied back `after`. `read`: what it holds matters."""
    t = _movable(t.detach())
    if plain(t) or plain(t := _near(t)):
        return t
    if read:
        copy = contents(t)
        # A view of the original would not be a place of its own.
        copy = copy.clone() if copy.data_ptr() == t.data_ptr() else copy
    else:
        copy = torch.empty(t.shape, dtype=t.dtype, device=_where(t))
    after.append(lambda: write(t, copy))
    return copy


def hosted(t: torch.Tensor) -> torch.Tensor:
    """As `contents`, in host memory."""
    return contents(t.detach().cpu() if t.is_cuda else t)


def host_place(t: torch.Tensor, after: list[Finish]) -> torch.Tensor:
    """As `place`, in host memory; what comes is copied to a CUDA tensor in the order of the stream that is the caller's now."""
    if not t.is_cuda:
        return place(t, after, read=False)
    copy = torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True)
    stream = torch.cuda.current_stream(t.device)

    def back() -> None:
        with torch.cuda.stream(stream):
            write(t, copy)

    after.append(back)
    return copy


def write(t: torch.Tensor, copy: torch.Tensor) -> None:
    """Copy an output to where it belongs, in the mode of the thread; a tensor of inference mode is written in that mode by any."""
    inference = t.is_inference() or torch.is_inference_mode_enabled()
    with torch.inference_mode(inference), torch.no_grad():
        t.detach().copy_(copy)


def in_this_mode(finish: Finish) -> Finish:
    """The same, done as this thread would do it now: in its inference mode, or not in it, whichever thread does it."""
    mode = torch.is_inference_mode_enabled()

    def run() -> None:
        with torch.inference_mode(mode):
            finish()

    return run


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """All parts one after the other, to read from: where they lie, or a copy."""
    parts = _near_all(parts)
    flat = _adjacent(parts)
    if flat is None:
        flat = torch.cat([contents(p).reshape(-1) for p in parts]) if parts else torch.empty(0)
    return flat


def spread(parts: Sequence[torch.Tensor], after: list[Finish]) -> torch.Tensor:
    """Room for all parts one after the other: where they lie, or a buffer that is copied to them `after`."""
    parts = _near_all(parts)
    flat = _adjacent(parts)
    if flat is not None:
        return flat
    total = sum(p.numel() for p in parts)
    flat = torch.empty(total, dtype=parts[0].dtype, device=_where(parts[0])) if parts else torch.empty(0)

    def back() -> None:
        at = 0
        for p in parts:
            n = p.numel()
            write(p, flat[at : at + n].view(p.shape))
            at += n

    after.append(back)
    return flat


def _adjacent(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One flat tensor over parts that lie one after the other in one storage."""
    if not parts:
        return None
    first = parts[0]
    if not all(p.dtype is first.dtype and plain(p) for p in parts):
        return None
    storage, at = first.untyped_storage().data_ptr(), first.data_ptr()
    for p in parts:
        if p.numel() == 0:
            continue
        if p.untyped_storage().data_ptr() != storage or p.data_ptr() != at:
            return None
        at += p.numel() * p.element_size()
    total = sum(p.numel() for p in parts)
    return first.detach().as_strided((total,), (1,), first.storage_offset())


def alike(parts: Sequence[torch.Tensor], op: str, rank: int) -> None:
    """Refuse lists whose tensors have different types or are on different devices."""
    kinds = {p.dtype for p in parts}
    if len(kinds) > 1:
        names = ", ".join(sorted(str(k) for k in kinds))
        raise MisuseError(f"rank {rank}: the tensors of one {op} must have one type, not {names}", rank, op)
    places = {p.device for p in parts}
    if len(places) > 1:
        names = ", ".join(sorted(str(p) for p in places))
        raise MisuseError(
            f"rank {rank}: the tensors of one {op} must be on one device, not {names}", rank, op
        )
