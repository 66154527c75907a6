"""Comity in the place of `mx.distributed`, for scripts and libraries that were written for that."""

import mlx.core as mx

from comity.mlx import _compile, _groups, _ops

_NAMES = {
    "Group": _groups.Group,
    "all_gather": _ops.all_gather,
    "all_max": _ops.all_max,
    "all_min": _ops.all_min,
    "all_sum": _ops.all_sum,
    "all_to_all": _ops.all_to_all,
    "init": _groups.init,
    "is_available": _groups.is_available,
    "recv": _ops.recv,
    "recv_like": _ops.recv_like,
    "send": _ops.send,
    "sum_scatter": _ops.sum_scatter,
}


def replace() -> None:
    """From now on `mx.distributed` is Comity in this process, also for `mlx.nn` and the libraries on top of it.

    `mx.compile` leaves functions that communicate as they are: see `_compile`.
    """
    for name, function in _NAMES.items():
        setattr(mx.distributed, name, function)
    mx.compile = _compile.compile_or_not
