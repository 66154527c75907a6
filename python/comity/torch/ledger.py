"""The calls that a rank has put on its device, as bytes that the ranks of a group compare.

A call is noted as it is made, which costs the caller an append to a list. All else is done by the thread that compares (`watch.py`).
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, NamedTuple

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
_SAMPLE = ""
_OPS = [
    _SAMPLE, "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
]  # fmt: skip
_OP_NUMBERS = {name: i for i, name in enumerate(_OPS)}
_KINDS = _c10d.ReduceOp.RedOpType
_REDUCTIONS = {
    getattr(_KINDS, torch_name): (i, word)
    for i, (torch_name, word) in enumerate(
        [
            ("SUM", "sum"), ("AVG", "avg"), ("PRODUCT", "product"), ("MIN", "min"), ("MAX", "max"), ("BAND", "and"), ("BOR", "or"),
            ("BXOR", "xor"), ("PREMUL_SUM", "scaled sum"),
        ],
        start=1,
    )
}  # fmt: skip
_REDUCTION_WORDS = dict(_REDUCTIONS.values())
#: The core's names of types, by torch's.
_NAMES = {
    str(t).removeprefix("torch."): name
    for t, n in NUMBERS.items()
    for name, m in _core.DTYPES.items()
    if m == n
}
#: Operation, type, elements, and torch's options, which hold the reduction and the root.
Note = tuple[str, torch.dtype | None, int, Any]


def encoded(note: Note) -> bytes:
    """The bytes of a call."""
    op, dtype, count, opts = note
    reduce_op = getattr(opts, "reduceOp", None)
    reduction = 0
    if reduce_op is not None:
        reduction = _REDUCTIONS[getattr(reduce_op, "op", reduce_op)][0]
    kind = 0 if dtype is None else 1 + type_number(dtype) & 0xFFFF
    return _NOTE.pack(_OP_NUMBERS[op], reduction, kind, getattr(opts, "rootRank", -1), count)


def words(call: bytes, number: int) -> str:
    """A call in words, as `all_reduce #76 f32[256] sum`. `number`: its place among the group's calls, from 1."""
    op, reduction, kind, root, count = _NOTE.unpack(call)
    said = f"{_OPS[op]} #{number}"
    if kind:
        name = TYPES[kind - 1] if kind <= len(TYPES) else "another type"
        said += f" {_NAMES.get(name, name)}[{count}]"
    if reduction:
        said += f" {_REDUCTION_WORDS[reduction]}"
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


class Sample(NamedTuple):
    """A call that is looked at until it has ended."""

    #: The calls before it.
    at: int
    call: bytes
    work: Any
    batch: str


class Ledger:
    """The calls of one rank that have not been found equal on all ranks."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._bytes = bytearray()
        self._last = NOTHING
        #: So many calls were equal on all ranks.
        self.agreed = 0
        #: Notes a call.
        self.note = self._notes.append
        #: Whether the next call's work is to be shown.
        self.wants_work = True
        self.sample: Sample | None = None

    def show(self, work: Any, batch: str = "") -> None:
        """Keep the work of the call that was noted last, to see whether it ends. A work holds its tensors: there is one at a time.
        `batch`: the work is of these sends and receives, which are not noted."""
        self.wants_work = False
        self.note((_SAMPLE, None, 0, (work, batch)))

    def absorb(self) -> int:
        """Turn notes into bytes. The calls so far."""
        notes = self._notes[:]
        for note in notes:
            if note[0] == _SAMPLE:
                self.sample = Sample(
                    self.agreed + len(self._bytes) // SIZE - 1, bytes(self._bytes[-SIZE:]), *note[3]
                )
            else:
                self._bytes += encoded(note)
        # Others may have been noted meanwhile, behind these.
        del self._notes[: len(notes)]
        return self.agreed + len(self._bytes) // SIZE

    def part(self, upto: int) -> bytes:
        """The calls from those agreed on up to this number."""
        return bytes(self._bytes[: (upto - self.agreed) * SIZE])

    def call(self, at: int) -> bytes:
        """The call with `at` calls before it; `NOTHING` where it was not made, or is no longer known."""
        if self.sample is not None and self.sample.at == at and not self.sample.batch:
            return self.sample.call
        begin = (at - self.agreed) * SIZE
        return bytes(self._bytes[begin : begin + SIZE]) or NOTHING if begin >= 0 else NOTHING

    def digest(self, upto: int) -> int:
        """A number that differs where `part` does."""
        digest = hashlib.blake2b(self.part(upto), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    def last(self) -> str:
        """The last call in words."""
        count = self.absorb()
        return words(bytes(self._bytes[-SIZE:]) or self._last, count)

    def agree(self, upto: int) -> None:
        """The calls up to this number are equal on all ranks."""
        if upto > self.agreed:
            self._last = self.call(upto - 1)
        del self._bytes[: (upto - self.agreed) * SIZE]
        self.agreed = upto
