"""The backend for torch 2.11 to 2.13, where Python cannot subclass c10d's `Backend`: a whole process group in Python.

Torch lets such a group replace all others of its name, so the first call of `cpu:comity,cuda:nccl` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import tracing
from .device import DeviceGroup
from .futures import Future
from .lifecycle import Lifecycle, Options
from .staging import StreamWork
from .versions import BACKENDS, VERSION
from .work import Done, Work


class ProcessGroup(Lifecycle, dist.ProcessGroup):
    """See the module."""

    # C++ looks a method up by a name that no cache knows: here it is found first.
    allreduce = Lifecycle.allreduce
    supports_splitting = False
    supports_coalescing = True

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        options: Options,
        name: str,
        ranks: Sequence[int],
    ) -> None:
        dist.ProcessGroup.__init__(self, rank, size)
        self._group_name, self._group_desc = name, ""
        self._begin(store, rank, size, timeout, options, name, ranks)
        self._unseen = self

    def _shortcut(self, allreduce: Callable[..., Any] | None) -> None:
        if allreduce is None:
            self.__dict__.pop("allreduce", None)
        else:
            self.__dict__["allreduce"] = allreduce

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size

    def name(self) -> str:
        return "comity"

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._group_desc

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _set_group_desc(self, desc: str) -> None:
        self._group_desc = desc

    def getGroupName(self) -> str:
        return self._group_name

    def getGroupDesc(self) -> str:
        return self._group_desc

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    @property
    def bound_device_id(self) -> None:
        return None

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        """The first call on CUDA tensors says which device it is."""

    @property
    def _device_types(self) -> list[torch.device]:
        # Newer torch attaches a recorder to every group that names devices, which needs a C++ backend: name none before the group is known.
        if VERSION >= BACKENDS and self not in dist.distributed_c10d._world.pg_map:
            return []
        return [torch.device("cpu")] + [torch.device("cuda")] * torch.cuda.is_available()

    def _get_backend(self, device: Any = None) -> ProcessGroup:
        return self

    def _set_default_backend(self, backend: Any) -> None:
        """There is only this one."""

    def _start_coalescing(self, device: Any = None) -> None:
        self.start_coalescing()

    def _end_coalescing(self, device: Any = None) -> Any:
        return self.end_coalescing()


tracing.skip_methods(ProcessGroup, Work, StreamWork, DeviceGroup, Done, Future)


def create(opts: Any, settings: Any) -> ProcessGroup:
    """What `init_process_group` and `new_group` call."""
    options = settings if isinstance(settings, Options) else Options()
    return ProcessGroup(
        opts.store,
        opts.group_rank,
        opts.group_size,
        opts.timeout,
        options,
        opts.group_id,
        opts.global_ranks_in_group,
    )
