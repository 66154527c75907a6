"""Collective communication for machine learning, on the computers people own.

A job runs as several processes, its ranks, which pass arrays through a group::

    import comity
    import numpy as np

    group = comity.init()
    total = group.all_reduce(np.ones(3) * group.rank)

Start it with ``comity launch -n 4 -- python my_script.py``. Arrays of NumPy, torch, MLX and JAX go in and
come back as they are; see `comity.Group`. `comity.mlx` has the layers and gradients of MLX, `comity.torch` the backend for
``torch.distributed``.

Importing this imports no framework.
"""

from comity import _core, _torch, errors
from comity._functions import (
    all_gather,
    all_gather_object,
    all_max,
    all_min,
    all_reduce,
    all_sum,
    all_to_all,
    barrier,
    broadcast,
    broadcast_object,
    empty,
    gather,
    init,
    is_available,
    recv,
    recv_like,
    reduce,
    reduce_scatter,
    scatter,
    scatter_object,
    send,
    sendrecv,
    sum_scatter,
)
from comity._group import Group, Member
from comity._request import Request
from comity.errors import (
    Aborted,
    Closed,
    Config,
    Error,
    Forked,
    Join,
    Library,
    Mismatch,
    Misuse,
    Os,
    PeerLost,
    Timeout,
    TimeoutError,
    Unavailable,
)

__version__ = _core.VERSION
_torch.watch()

__all__ = [
    "Aborted",
    "Closed",
    "Config",
    "Error",
    "Forked",
    "Group",
    "Join",
    "Library",
    "Member",
    "Mismatch",
    "Misuse",
    "Os",
    "PeerLost",
    "Request",
    "Timeout",
    "TimeoutError",
    "Unavailable",
    "all_gather",
    "all_gather_object",
    "all_max",
    "all_min",
    "all_reduce",
    "all_sum",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_object",
    "empty",
    "errors",
    "gather",
    "init",
    "is_available",
    "recv",
    "recv_like",
    "reduce",
    "reduce_scatter",
    "scatter",
    "scatter_object",
    "send",
    "sendrecv",
    "sum_scatter",
]
