"""Which part of a parameter each rank keeps."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

import comity
from comity.errors import MisuseError
from comity.mlx._groups import Group, of

# How a parameter that holds several ones (such as fused queries, keys and values) is cut before each part is sharded: into equal
# parts, at these indices, or at these fractions of the axis.
Segments = int | Sequence[int] | Sequence[float]
# (path, parameter) -> the axis to shard, (axis, segments), or None to keep it whole.
Predicate = Callable[[str, mx.array], Any]


def bounds(segments: Segments, length: int, what: str) -> list[int]:
    """The ends of the segments of an axis of this length, 0 and `length` among them."""
    if isinstance(segments, int) and not isinstance(segments, bool):
        if segments < 1 or length % segments:
            raise MisuseError(f"{what} of {length} cannot be cut into {segments} equal segments")
        return [length // segments * i for i in range(segments + 1)]
    try:
        inner = [int(s * length) if isinstance(s, float) else int(s) for s in segments]
    except TypeError:
        raise MisuseError(f"segments are a number, indices or fractions, not {segments!r}") from None
    ends = [0, *inner, length]
    if any(a >= b for a, b in itertools.pairwise(ends)):
        raise MisuseError(f"segments {list(segments)!r} do not cut {what} of {length} into parts, in order")
    return ends


def part(
    x: mx.array, axis: int, segments: Segments, group: Group, logical: int | None = None, unit: int = 1
) -> mx.array:
    """This rank's part of `x`: the same share of each segment, joined.

    `logical` is the axis's length in elements where `x` packs several into one, or has one entry for several; the parts must
    hold a whole number of `unit`s.
    """
    n, r = group.size(), group.rank()
    axis = axis % x.ndim if x.ndim else 0
    if x.ndim == 0:
        raise MisuseError("a scalar cannot be sharded", r)
    length = x.shape[axis]
    logical = length if logical is None else logical
    parts = []
    for start, end in _pairs(bounds(segments, logical, "an axis")):
        if (end - start) % (n * unit):
            units = f" in whole groups of {unit}" if unit > 1 else ""
            raise MisuseError(f"a segment of {end - start} cannot be sharded across {n} ranks{units}", r)
        step = (end - start) // n
        at = [(start + step * r) * length, (start + step * (r + 1)) * length]
        if any(a % logical for a in at):
            raise MisuseError(f"the parts of an axis of {logical} do not fall on its packed elements", r)
        index = [slice(None)] * x.ndim
        index[axis] = slice(at[0] // logical, at[1] // logical)
        parts.append(x[tuple(index)])
    joined = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=axis)
    return mx.contiguous(joined)


def _pairs(ends: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(ends))


def _all_to_sharded(path: str, x: mx.array) -> int:
    return -1 if path.endswith("bias") else max(x.ndim - 2, 0)


def _sharded_to_all(path: str, _x: mx.array) -> int | None:
    return None if path.endswith("bias") else -1


PREDICATES: dict[str, Predicate] = {"all-to-sharded": _all_to_sharded, "sharded-to-all": _sharded_to_all}


def predicate(sharding: str | Predicate) -> Predicate:
    """The rule that a name stands for."""
    if callable(sharding):
        return sharding
    if sharding not in PREDICATES:
        raise MisuseError(
            f"there is no sharding {sharding!r}; there are {', '.join(PREDICATES)}, or a function"
        )
    return PREDICATES[sharding]


def own(module: nn.Module, prefix: str, rule: Predicate, segments: Segments, group: Group) -> dict[str, Any]:
    """This rank's part of the arrays that a module itself holds."""
    sharded: dict[str, Any] = {}
    for name, x in module.items():
        if not isinstance(x, mx.array):
            continue
        found = rule(f"{prefix}.{name}" if prefix else name, x)
        if found is None:
            continue
        axis, cut = found if isinstance(found, tuple) else (found, segments)
        if not isinstance(axis, int) or isinstance(axis, bool):
            raise MisuseError(f"a rule for sharding gives an axis, (axis, segments) or None, not {found!r}")
        logical, unit = None, 1
        size = getattr(module, "group_size", None)
        if (
            "scales" in module
            and name in ("weight", "scales", "biases")
            and size
            and axis % x.ndim == x.ndim - 1
        ):
            # Several elements in one, and one scale for several: what is cut is the row they stand for.
            logical, unit = module["scales"].shape[-1] * size, size
        elif x.ndim == 0:
            continue
        sharded[name] = part(x, axis, cut, group, logical, unit)
    return sharded


def shard_inplace(
    module: nn.Module,
    sharding: str | Predicate,
    *,
    segments: Segments = 1,
    group: comity.Group | None = None,
) -> None:
    """Leave this rank's part of the parameters in a module, its inner modules included. Adds no communication.

    ``"all-to-sharded"`` cuts the outputs (rows of the weights, and the bias), ``"sharded-to-all"`` the inputs (columns of the
    weights), and keeps the bias whole: a module that adds its bias before the sum over ranks would add it once for each rank. A
    function of path and parameter gives the axis, ``(axis, segments)``, or None to keep the parameter whole.
    """
    g, rule = of(group), predicate(sharding)
    for prefix, inner in module.named_modules():
        for name, x in own(inner, prefix, rule, segments, g).items():
            inner[name] = x
