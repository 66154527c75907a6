"""Objects between ranks: as JSON with arrays beside it, or, where it is asked for, as a pickle.

A message is one letter and what belongs to it: ``J``: the length of a header, the header (JSON) and the arrays' bytes; ``P``: a pickle;
``E``: words of a rank that could not write its object, so that the others need not wait for it.
"""

import json
import pickle
import struct
from collections.abc import Sequence
from typing import Any

from comity import _core
from comity.arrays import LONG_NAMES, Block, kind, kind_of
from comity.errors import MisuseError

_TAG = "!"
_FRAMEWORKS = ("numpy", "torch", "mlx", "jax")
_I64, _U8 = _core.DTYPES["i64"], _core.DTYPES["u8"]
# Arrays start at multiples of this in a message.
_ALIGN = 16


def broadcast(group: "_core.Group", obj: Any, root: int, allow_pickle: bool) -> Any:
    """See `comity.Group.broadcast_object`."""
    mine = group.rank == root
    message = _write(obj, allow_pickle) if mine else bytearray()
    length = _numbers([len(message)])
    group.run("broadcast", None, _buffer(length, _I64), _core.Args(root=root, objects=True))
    if not mine:
        message = bytearray(_read_numbers(length)[0])
    group.run("broadcast", None, _buffer(message), _core.Args(root=root, objects=True))
    return _read(message, root, allow_pickle)


def all_gather(group: "_core.Group", obj: Any, allow_pickle: bool) -> list[Any]:
    """See `comity.Group.all_gather_object`."""
    message = _write(obj, allow_pickle)
    mine, lengths = _numbers([len(message)]), _numbers([0] * group.size)
    group.run("all_gather", _buffer(mine, _I64), _buffer(lengths, _I64), _core.Args(objects=True))
    counts = _read_numbers(lengths)
    whole = bytearray(sum(counts))
    group.run("all_gather", _buffer(message), _buffer(whole), _core.Args(counts=counts, objects=True))
    found, at = [], 0
    for rank, count in enumerate(counts):
        found.append(_read(whole[at : at + count], rank, allow_pickle))
        at += count
    return found


def scatter(group: "_core.Group", objs: Sequence[Any] | None, root: int, allow_pickle: bool) -> Any:
    """See `comity.Group.scatter_object`."""
    size, mine = group.size, group.rank == root
    messages = [bytearray()] * size
    if mine and objs is not None and len(objs) == size:
        messages = [_write(o, allow_pickle) for o in objs]
    elif mine:
        given = "None" if objs is None else f"{len(objs)} objects"
        messages = [_words(MisuseError(f"{given} were given for {size} ranks"))] * size
    length = _numbers([0])
    lengths = _numbers([len(m) for m in messages])
    args = _core.Args(root=root, objects=True)
    group.run("scatter", _buffer(lengths, _I64) if mine else None, _buffer(length, _I64), args)
    message = bytearray(_read_numbers(length)[0])
    come = [0] * size
    come[root] = len(message)
    whole = bytearray().join(messages)
    args = _core.Args(counts=[len(m) for m in messages], recv_counts=come, objects=True)
    group.run("all_to_all", _buffer(whole), _buffer(message), args)
    return _read(message, root, allow_pickle)


def _buffer(b: bytearray, code: int = _U8) -> tuple[int, int, int]:
    # The caller holds `b`, and does not resize it.
    return _core.Memory(b).address, code, len(b) // _core.SIZES[code]


def _numbers(values: list[int]) -> bytearray:
    return bytearray(struct.pack(f"{len(values)}q", *values))


def _read_numbers(b: bytearray) -> list[int]:
    return list(struct.unpack(f"{len(b) // 8}q", b))


def _write(obj: Any, allow_pickle: bool) -> bytearray:
    try:
        try:
            return write_json(obj)
        except MisuseError:
            if not allow_pickle:
                raise
            return bytearray(b"P" + pickle.dumps(obj))
    except Exception as e:
        return _words(e)


def _words(e: Exception) -> bytearray:
    return bytearray(b"E" + f"{type(e).__name__}: {e}".encode(errors="replace"))


def _read(message: bytearray, rank: int, allow_pickle: bool) -> Any:
    letter, rest = bytes(message[:1]), memoryview(message)[1:]
    if letter == b"J":
        try:
            return read_json(message)
        except MisuseError as e:
            # What cannot be read was written by that rank.
            e.rank = rank
            raise
    if letter == b"E":
        raise MisuseError(
            f"rank {rank} could not pass its object: {bytes(rest).decode(errors='replace')}", rank
        )
    if letter == b"P":
        if allow_pickle:
            return pickle.loads(rest)
        raise MisuseError(
            f"rank {rank} passed its object as a pickle, which can run any code here; "
            "pass allow_pickle=True on this rank too if you trust that one",
            rank,
        )
    raise MisuseError(f"what rank {rank} passed is no message of this version of Comity", rank)


def write_json(obj: Any) -> bytearray:
    """`obj` as JSON with arrays beside it.

    What can be passed: None, bool, int, float, str, bytes, list, tuple, dict, and arrays of NumPy, torch, MLX and JAX.
    """
    parts: list[tuple[Block | bytes, dict[str, Any]]] = []
    value = _to_json(obj, parts)
    at, about = 0, []
    for part, entry in parts:
        size = len(part) if isinstance(part, bytes) else part.count * _core.SIZES[part.code]
        about.append({**entry, "at": at, "size": size})
        at += -(-size // _ALIGN) * _ALIGN
    header = json.dumps({"value": value, "parts": about}, separators=(",", ":")).encode()
    start = -(-(9 + len(header)) // _ALIGN) * _ALIGN
    message = bytearray(start + at)
    message[:9] = struct.pack("<cQ", b"J", len(header))
    message[9 : 9 + len(header)] = header
    address = _core.Memory(message).address
    for (part, _), entry in zip(parts, about, strict=True):
        to = start + entry["at"]
        if isinstance(part, bytes):
            message[to : to + len(part)] = part
        else:
            _core.copy(part.buffer, (address + to, part.code, part.count))
    return message


def _to_json(obj: Any, parts: list[tuple[Block | bytes, dict[str, Any]]]) -> Any:
    if obj is None or isinstance(obj, bool | int | float | str):
        return obj
    if isinstance(obj, list):
        return [_to_json(o, parts) for o in obj]
    if isinstance(obj, tuple):
        return {_TAG: "tuple", "of": [_to_json(o, parts) for o in obj]}
    if isinstance(obj, dict):
        if all(isinstance(k, str) and k != _TAG for k in obj):
            return {k: _to_json(v, parts) for k, v in obj.items()}
        return {_TAG: "dict", "of": [[_to_json(k, parts), _to_json(v, parts)] for k, v in obj.items()]}
    if isinstance(obj, bytes):
        parts.append((obj, {}))
        return {_TAG: "bytes", "of": len(parts) - 1}
    framework = _framework(obj)
    if framework is None:
        raise MisuseError(
            f"{_name(obj)} cannot be passed as JSON; pass plain values and arrays, or allow_pickle=True on every rank "
            "if you trust all of them"
        )
    block = kind_of(framework).read(obj)
    if block.place is not None:
        raise MisuseError(
            f"{_name(obj)} is on a CUDA device; objects carry arrays of host memory: copy it there first"
        )
    entry = {"kind": framework, "dtype": LONG_NAMES[block.code], "shape": list(block.shape)}
    parts.append((block, entry))
    return {_TAG: "array", "of": len(parts) - 1}


def _framework(obj: Any) -> str | None:
    try:
        name = type(kind(obj)).__name__.lower()
    except MisuseError:
        return None
    return name if name in _FRAMEWORKS else None


def _name(obj: Any) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def read_json(message: bytearray) -> Any:
    """The object that `write_json` wrote."""
    _, length = struct.unpack_from("<cQ", message)
    header = json.loads(bytes(message[9 : 9 + length]))
    start = -(-(9 + length) // _ALIGN) * _ALIGN
    address = _core.Memory(message).address

    def part(index: int) -> tuple[dict[str, Any], int]:
        entry = header["parts"][index]
        at, size = start + entry["at"], entry["size"]
        if at < start or size < 0 or at + size > len(message):
            raise MisuseError("a message of objects has a part outside of itself")
        return entry, at

    def from_json(v: Any) -> Any:
        if isinstance(v, list):
            return [from_json(o) for o in v]
        if not isinstance(v, dict):
            return v
        tag, of = v.get(_TAG), v.get("of")
        if tag is None:
            return {k: from_json(o) for k, o in v.items()}
        if tag == "tuple":
            return tuple(from_json(o) for o in of)
        if tag == "dict":
            return {from_json(k): from_json(o) for k, o in of}
        entry, at = part(of)
        if tag == "bytes":
            return bytes(message[at : at + entry["size"]])
        if entry["kind"] not in _FRAMEWORKS:
            raise MisuseError(f"there are no arrays of {entry['kind']!r}")
        found = kind_of(entry["kind"])
        block = found.new(tuple(entry["shape"]), found.dtype(entry["dtype"]))
        if block.count * _core.SIZES[block.code] != entry["size"]:
            raise MisuseError("a message of objects has an array of the wrong size")
        _core.copy((address + at, block.code, block.count), block.buffer)
        return block.result()  # WAIT: none, the array is there

    return from_json(header["value"])
