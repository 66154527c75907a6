"""The operations of `mx.distributed`, with gradients.

A call communicates when it is made. Gradients follow MLX's convention: what comes after a call is the same on every rank. Where
ranks go on with different parts, `sum_gradients` in front of them adds the gradients up.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import mlx.core as mx

import comity
from comity.errors import MisuseError
from comity.mlx._groups import Group, of

Op = Callable[[mx.array], mx.array]
_ops: "WeakKeyDictionary[Group, dict[str, Op]]" = WeakKeyDictionary()


def _op(group: Group, name: str) -> Op:
    """The differentiable form of an operation, made once for each group."""
    ops = _ops.setdefault(group, {})
    if name not in ops:
        # The table must not keep the group alive.
        raw = comity.Group(group._raw, group._end)
        ops[name] = _MAKERS[name](raw)
    return ops[name]


def _linear(call: Op, back: Callable[[mx.array, mx.array], mx.array]) -> Op:
    """A linear operation. `back`: given what it was called with and the gradient of its result, the gradient of the former."""

    @mx.custom_function
    def f(x: mx.array) -> mx.array:
        return call(x)

    @f.vjp
    def f(x: mx.array, cotangent: mx.array, _y: mx.array) -> mx.array:
        return back(x, cotangent)

    @f.jvp
    def f(_x: mx.array, tangent: mx.array) -> mx.array:
        return call(tangent)

    return f


def _extreme(g: comity.Group, name: str) -> Op:
    @mx.custom_function
    def f(x: mx.array) -> mx.array:
        return g.all_reduce(x, name)

    @f.vjp
    def f(x: mx.array, cotangent: mx.array, y: mx.array) -> mx.array:
        # To the ranks that have the extreme, in equal parts.
        mine = (x == y).astype(mx.float32)
        return (cotangent * mine / g.all_sum(mine)).astype(cotangent.dtype)

    return f


def _own_part(g: comity.Group, x: mx.array, whole: mx.array) -> mx.array:
    """The part of a gathered array that this rank gave as `x`."""
    if x.ndim == 0:
        return whole[g.rank]
    n = x.shape[0]
    return whole[g.rank * n : (g.rank + 1) * n]


_MAKERS: dict[str, Callable[[comity.Group], Op]] = {
    "all_sum": lambda g: _linear(g.all_sum, lambda _x, cotangent: cotangent),
    "all_max": partial(_extreme, name="max"),
    "all_min": partial(_extreme, name="min"),
    "all_gather": lambda g: _linear(g.all_gather, partial(_own_part, g)),
    "sum_scatter": lambda g: _linear(g.sum_scatter, lambda _x, cotangent: g.all_gather(cotangent)),
    "all_to_all": lambda g: _linear(g.all_to_all, lambda _x, cotangent: g.all_to_all(cotangent)),
    "sum_gradients": lambda g: _linear(lambda x: x, lambda _x, cotangent: g.all_sum(cotangent)),
}


def _array(x: Any) -> mx.array:
    return x if isinstance(x, mx.array) else mx.array(x)


def _call(name: str, x: Any, group: comity.Group | None) -> mx.array:
    g, x = of(group), _array(x)
    return x if g.size() == 1 else _op(g, name)(x)


# `stream` is for the sake of MLX's signatures: a call is made when it is written.


def all_sum(x: Any, *, group: comity.Group | None = None, stream: Any = None) -> mx.array:
    """The sum over all ranks."""
    return _call("all_sum", x, group)


def all_max(x: Any, *, group: comity.Group | None = None, stream: Any = None) -> mx.array:
    """The greatest over all ranks. Its gradient goes to the rank that has it (in MLX: to every rank)."""
    return _call("all_max", x, group)


def all_min(x: Any, *, group: comity.Group | None = None, stream: Any = None) -> mx.array:
    """The least over all ranks. Its gradient goes to the rank that has it (in MLX: to every rank)."""
    return _call("all_min", x, group)


def all_gather(x: Any, *, group: comity.Group | None = None, stream: Any = None) -> mx.array:
    """Every rank's `x`, by rank, along the first axis; numbers become a vector."""
    return _call("all_gather", x, group)


def sum_scatter(x: Any, *, group: comity.Group | None = None, stream: Any = None) -> mx.array:
    """Part r, along the first axis, of the sum over all ranks for rank r. Its gradient is gathered (MLX has none)."""
    return _call("sum_scatter", x, group)


def all_to_all(x: Any, *, group: comity.Group | None = None, stream: Any = None) -> mx.array:
    """Part r of `x` along the first axis to rank r; one part from each rank."""
    return _call("all_to_all", x, group)


def broadcast(x: Any, root: int = 0, *, group: comity.Group | None = None, stream: Any = None) -> mx.array:
    """The root's `x` on every rank."""
    return of(group).broadcast(_array(x), root)


def send(x: Any, dst: int, *, group: comity.Group | None = None, stream: Any = None) -> mx.array:
    """Send `x` to rank `dst`; returns `x`. It is sent now, whether or not the result is evaluated."""
    g = _several(group, "send to")
    return g.send(_array(x), dst)


def recv(
    shape: Sequence[int], dtype: Any, src: int, *, group: comity.Group | None = None, stream: Any = None
) -> mx.array:
    """What rank `src` sends, of this shape and type."""
    return _several(group, "receive from").recv(shape, dtype, src)


def recv_like(x: mx.array, src: int, *, group: comity.Group | None = None, stream: Any = None) -> mx.array:
    """What rank `src` sends, of the shape and type of `x`."""
    return recv(x.shape, x.dtype, src, group=group)


def barrier(*, group: comity.Group | None = None) -> None:
    """Return once every rank has called this."""
    of(group).barrier()


def sum_gradients(group: comity.Group | None = None) -> Op:
    """A function that returns its argument, and whose gradient is summed over all ranks."""
    g = of(group)
    return (lambda x: x) if g.size() == 1 else _op(g, "sum_gradients")


def _several(group: comity.Group | None, verb: str) -> Group:
    g = of(group)
    if g.size() == 1:
        raise MisuseError(f"a group of one has no other rank to {verb}", 0)
    return g
