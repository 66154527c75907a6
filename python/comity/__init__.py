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

try:
    from comity import _core
except ImportError as why:
    import platform

    # The loader's own words for a file of another processor are that there is none.
    raise ImportError(
        f"the compiled part of comity is not there for this {platform.system()} on {platform.machine()}, or does not "
        f"load: {why}; run `pip install --force-reinstall comity` on this machine, in a clone `pip install .`"
    ) from why

from comity import _torch, errors
from comity._elastic import Departure, Member, ReformOutcome
from comity._functions import (
    all_gather,
    all_gather_object,
    all_reduce,
    all_reduce_or_keep,
    all_to_all,
    barrier,
    broadcast,
    broadcast_object,
    empty,
    gather,
    init,
    is_available,
    joiners,
    recv,
    reduce,
    reduce_scatter,
    reform,
    scatter,
    scatter_object,
    send,
    sendrecv,
    sync,
)
from comity._group import Group
from comity._request import Request
from comity._store import Store
from comity.errors import (
    AbortedError,
    ConfigError,
    Error,
    ForkedError,
    GroupClosedError,
    JoinError,
    LibraryError,
    MismatchError,
    MisuseError,
    PeerLostError,
    SystemCallError,
    UnavailableError,
)
from comity.errors import (
    TimeoutError as TimeoutError,
)

__version__ = _core.VERSION
_torch.register()

__all__ = [
    "AbortedError",
    "ConfigError",
    "Departure",
    "Error",
    "ForkedError",
    "Group",
    "GroupClosedError",
    "JoinError",
    "LibraryError",
    "Member",
    "MismatchError",
    "MisuseError",
    "PeerLostError",
    "ReformOutcome",
    "Request",
    "Store",
    "SystemCallError",
    "UnavailableError",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_reduce_or_keep",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_object",
    "empty",
    "errors",
    "gather",
    "init",
    "is_available",
    "joiners",
    "recv",
    "reduce",
    "reduce_scatter",
    "reform",
    "scatter",
    "scatter_object",
    "send",
    "sendrecv",
    "sync",
]
