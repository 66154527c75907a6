"""The calls that a rank has put on its device, as bytes that the ranks of a group compare.

A call is noted as it is made, which costs the caller an append to a list. All else is done by the thread that compares (`watch.py`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from comity import _core

from .messages import TYPES, type_number
from .tensors import NUMBERS

#: Operation, reduction, type, root, elements.
_NOTE = struct.Struct("<BBHiQ")
SIZE = _NOTE.size
#: What the record of no call looks like.
NOTHING = bytes(SIZE)
_OPS = [
    "", "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
]  # fmt: skip
_OP_NUMBERS = {name: i for i, name in enumerate(_OPS)}
_REDUCING = {"all_reduce", "reduce", "reduce_scatter"}
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
#: In the order of torch's numbers.
_REDUCTIONS = ["sum", "avg", "product", "min", "max", "and", "or", "xor", "scaled sum"]
#: A reduction's number. Its hash is that, and is had in one step.
_number: Callable[[Any], int] = (
    hash if hash(_c10d.ReduceOp(_c10d.ReduceOp.PRODUCT)) == 2 else lambda r: int(r.op)
)
#: The core's names of types, by torch's.
_NAMES = {
    str(t).removeprefix("torch."): name
    for t, n in NUMBERS.items()
    for name, m in _core.DTYPES.items()
    if m == n
}
#: Operation, type, elements, and torch's options, which hold the reduction and the root.
Note = tuple[str, torch.dtype, int, Any]

#: Calls of which the bytes are known, and how many are kept.
_known: dict[Any, bytes] = {}
_MOST = 4096


def encoded(note: Note) -> bytes:
    """The bytes of a call. It is made of many calls, so it takes no more than it must."""
    op, dtype, count, opts = note
    reduction = 1 + _number(opts.reduceOp) if op in _REDUCING else 0
    root = opts.rootRank if op in _ROOTED else -1
    key = (op, dtype, count, reduction, root)
    known = _known.get(key)
    if known is None:
        if len(_known) > _MOST:
            _known.clear()
        kind = 1 + type_number(dtype) & 0xFFFF
        known = _known[key] = _NOTE.pack(_OP_NUMBERS[op], reduction, kind, root, count)
    return known


def words(call: bytes, number: int) -> str:
    """A call in words, as `all_reduce #76 f32[256] sum`. `number`: its place among the group's calls, from 1."""
    op, reduction, kind, root, count = _NOTE.unpack(call)
    said = f"{_OPS[op]} #{number}"
    if kind:
        name = TYPES[kind - 1] if kind <= len(TYPES) else "another type"
        said += f" {_NAMES.get(name, name)}[{count}]"
    if reduction:
        name = _REDUCTIONS[reduction - 1] if reduction <= len(_REDUCTIONS) else "another reduction"
        said += f" {name}"
    return said if root < 0 else f"{said} root {root}"


def difference(a: bytes, b: bytes) -> str:
    """What two calls differ in first."""
    (op, reduction, kind, root, _), other = _NOTE.unpack(a), _NOTE.unpack(b)
    for what, one, two in (
        ("operation", op, other[0]),
        ("dtype", kind, other[2]),
        ("reduction", reduction, other[1]),
        ("root", root, other[3]),
    ):
        if one != two:
            return what
    return "count"


class Ledger:
    """The calls of one rank that have not been found equal on all ranks."""

    def __init__(self, counted: Callable[[str, int], None] = lambda op, size: None) -> None:
        """`counted`: told each call's operation and bytes."""
        self._counted = counted
        self._notes: list[Note] = []
        self._bytes = bytearray()
        #: The last call that was agreed on.
        self.latest = NOTHING
        #: So many calls were equal on all ranks.
        self.agreed = 0
        #: Notes a call.
        self.note = self._notes.append

    def count(self, note: Note) -> None:
        """Count a call, without keeping it."""
        op, dtype, count, _ = note
        self._counted(op, count * dtype.itemsize)

    def absorb(self) -> int:
        """Turn notes into bytes. The calls so far."""
        notes = self._notes[:]
        for note in notes:
            self._bytes += encoded(note)
        for op, dtype, count, _ in notes:
            self._counted(op, count * dtype.itemsize)
        # Others may have been noted meanwhile, behind these.
        del self._notes[: len(notes)]
        return self.agreed + len(self._bytes) // SIZE

    def part(self, upto: int) -> bytes:
        """The calls from those agreed on up to this number."""
        return bytes(self._bytes[: (upto - self.agreed) * SIZE])

    def call(self, at: int) -> bytes:
        """The call with `at` calls before it; `NOTHING` where it was not made, or is no longer known."""
        begin = (at - self.agreed) * SIZE
        return bytes(self._bytes[begin : begin + SIZE]) or NOTHING if begin >= 0 else NOTHING

    def digest(self, upto: int) -> int:
        """A number that differs where `part` does."""
        digest = hashlib.blake2b(self.part(upto), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    def last(self) -> str:
        """The last call in words."""
        count = self.absorb()
        if count == 0:
            return "the first call"
        return words(bytes(self._bytes[-SIZE:]) or self.latest, count)

    def agree(self, upto: int) -> None:
        """The calls up to this number are equal on all ranks."""
        if upto > self.agreed:
            self.latest = self.call(upto - 1)
        del self._bytes[: (upto - self.agreed) * SIZE]
        self.agreed = upto
