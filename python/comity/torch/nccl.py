"""Torch's own process group over NCCL, which carries calls on CUDA tensors: made and owned by a group of Comity."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from comity.errors import UnavailableError

from .messages import gathered

#: What the process group reads when it is made. Its own watchdog would end the process at an error, and at a limit. Here it only notes
#: them, and Comity says what happened and gives the communicator up.
_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
_settings = threading.Lock()
#: Longest limit that torch is told.
_LONGEST = timedelta(days=365)
_UUID = 16
#: The mode of the driver in which a thread minds captures of its own only.
_THREAD_LOCAL = 1


def limit(seconds: float) -> timedelta:
    """A limit as torch takes it."""
    return min(timedelta(seconds=seconds), _LONGEST)


def make(store: Any, rank: int, size: int, timeout: float, name: str, ranks: Sequence[int]) -> Any:
    """The process group. `timeout`: seconds that a call may take. `name` and `ranks` (in the job) are for torch's records."""
    if not dist.is_nccl_available():
        raise UnavailableError("this torch is built without NCCL, which moves CUDA tensors")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit(timeout)
    options.group_name = name
    options.global_ranks_in_group = list(ranks)
    with _settings:
        before = {k: os.environ.get(k) for k in _SETTINGS}
        os.environ.update(_SETTINGS)
        try:
            return dist.ProcessGroupNCCL(dist.PrefixStore("comity/nccl", store), rank, size, options)
        finally:
            for k, v in before.items():
                os.environ.pop(k) if v is None else os.environ.__setitem__(k, v)


def beside_captures() -> None:
    """Keep what this thread does out of the captures of graphs by other threads. Python may collect a program's objects on any thread, and
    the end of some would end a capture."""
    # Torch for other makers' devices has no such driver.
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_THREAD_LOCAL)))


def no_device_twice(group: Any, device: torch.device) -> None:
    """Refuse two ranks with one device, for which NCCL has no words. All members call this."""
    own = torch.cuda.get_device_properties(device)
    uuids = gathered(group, bytes.fromhex(str(own.uuid).replace("-", ""))[:_UUID])
    first: dict[bytes, int] = {}
    for rank, uuid in enumerate(uuids):
        if (other := first.setdefault(uuid, rank)) != rank:
            raise UnavailableError(
                f"ranks {other} and {rank} would share a device ({own.name} is rank {group.rank}'s), and NCCL takes one rank per device: "
                "call torch.cuda.set_device(local_rank) on each, and start no more ranks on a host than it has devices",
                rank,
            )
