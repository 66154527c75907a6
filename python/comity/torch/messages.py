"""What two ranks of a mailbox pass to each other: frames, and the errors of one direction as the group's.

A message is a frame of `FRAME` bytes with its tag, type and length, and with its bytes where they are few; else those follow.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any

import torch

from comity import _core
from comity.errors import AbortedError, Error, GroupClosedError, MisuseError, PeerLostError
from comity.errors import TimeoutError as LimitPassed

U8 = _core.DTYPES["u8"]
FRAME = 256
_HEAD = struct.Struct("<qHHIQ")  # tag, type, -, -, bytes
#: So many bytes travel in the frame.
FEW = FRAME - _HEAD.size
#: Seconds, for a thread that waits for whatever comes, and for calls without a limit: the most that the core takes.
EVER = 10 * 365 * 86400.0

TYPES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2", "bcomplex32", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2",
]  # fmt: skip
_NUMBERS = {getattr(torch, n): i for i, n in enumerate(TYPES) if hasattr(torch, n)}
_UNKNOWN = 0xFFFF


def type_number(dtype: torch.dtype) -> int:
    """The number of a type, as frames have it."""
    return _NUMBERS.get(dtype, _UNKNOWN)


def gathered(group: Any, mine: bytes, args: _core.Args | None = None) -> list[bytes]:
    """As many bytes from every rank, by rank."""
    size, n = len(mine), group.size
    given, got = array("b", mine), array("b", bytes(size * n))
    group.run("all_gather", (given.buffer_info()[0], U8, size), (got.buffer_info()[0], U8, size * n), args)
    taken = got.tobytes()
    return [taken[r * size : (r + 1) * size] for r in range(n)]


def frame_of(tag: int, t: torch.Tensor) -> bytes:
    """The frame of a message."""
    size = t.numel() * t.element_size()
    head = _HEAD.pack(tag, type_number(t.dtype), 0, 0, size)
    return head + (_bytes(t) if size <= FEW else b"").ljust(FEW, b"\0")


def read_frame(frame: torch.Tensor) -> tuple[int, int, int, torch.Tensor | None]:
    """Tag, number of the type, bytes, and the bytes themselves where they are few."""
    tag, number, _, _, size = _HEAD.unpack_from(memoryview(frame.numpy()))
    return tag, number, size, frame[_HEAD.size : _HEAD.size + size] if size <= FEW else None


def leave(pair: Any, why: Error) -> None:
    """End one direction, in good order or not."""
    if isinstance(why, AbortedError):
        pair.abort(str(why.cause or why))
    else:
        pair.close()


def view(t: torch.Tensor) -> torch.Tensor:
    """A plain tensor's bytes."""
    return t.detach().reshape(-1).view(torch.uint8)


def _bytes(t: torch.Tensor) -> bytes:
    return view(t).numpy().tobytes() if t.numel() else b""


def name_of(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}[{t.numel()}]"


def left(e: Error) -> bool:
    """Whether this is about a rank that left in good order."""
    return isinstance(e, GroupClosedError) or (isinstance(e, PeerLostError) and e.left)


def about(e: Error, peer: int, rank: int) -> Error:
    """The error of a direction, which knows two ranks only, as the group's: it names the peer by its rank there, or this rank."""
    cause = e.cause or str(e)
    if isinstance(e, PeerLostError):
        return PeerLostError(f"rank {peer} {cause}", peer, e.call, cause, left=e.left)
    if isinstance(e, AbortedError):
        return AbortedError(f"rank {peer} gave up the group: {cause}", peer, e.call, cause)
    if isinstance(e, MisuseError):
        return MisuseError(str(e), rank, e.call, e.cause)
    if isinstance(e, LimitPassed):
        return LimitPassed(
            f"rank {peer} did not take or give all of it in time ({cause})", peer, e.call, cause
        )
    return e


def of_call(e: Error, call: str, said: str | None = None) -> Error:
    """The error that ended something as that of this call of it. `said`: its words, if there are others."""
    own = {}
    if isinstance(e, PeerLostError):
        own = {"because_of": e.because_of, "seen_by": e.seen_by, "left": e.left}
    return type(e)(said or f"{call}: {e}", e.rank, call, e.cause, **own)
