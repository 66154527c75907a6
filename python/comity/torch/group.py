"""The process group of torch 2.14 and newer, where Comity serves all its devices.

Torch's own process group passes a call to the backend and returns a holder in C++ of the backend's work, which answers `wait` and
`get_future` only: `is_completed` is False for ever, and a receive from any rank does not say from which. This group makes the same call and
returns the backend's work itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from . import tracing
from .backend import Backend, made
from .device import DeviceGroup
from .futures import Future
from .staging import StreamWork
from .work import Done, Work

#: Methods that return a work.
_CALLS = [
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced", "gather", "gather_single", "scatter",
    "reduce_scatter", "alltoall", "barrier", "send", "recv", "recv_anysource", "_end_coalescing",
]  # fmt: skip
#: Methods for what is to see each call.
_HOOKS = ["register_pre_hook", "unregister_pre_hook", "register_post_hook", "unregister_post_hook"]
#: Those with a new name from torch 2.15 on. C++ looks for both, the new one first, so only one may be there.
_RENAMED = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}
_CUSTOM = dist.ProcessGroup.BackendType.CUSTOM


class Group(dist.ProcessGroup):
    """See the module."""

    def __init__(self, backend: Backend, store: Any, devices: Iterable[torch.device]) -> None:
        super().__init__(store, backend._rank, backend._size)
        self._comity = backend
        backend._alone = True
        # Makes the calls. The methods of this class would look for this class's first, which takes longer than all the rest.
        self._inner = dist.ProcessGroup(store, backend._rank, backend._size)
        self._recorder: Any = None
        devices = list(devices)
        for group in (super(), self._inner):
            group._set_default_backend(_CUSTOM)
            for device in devices:
                group._register_backend(device, _CUSTOM, backend)

    def _set_group_desc(self, desc: str) -> None:
        """The last that torch says of a new group before it attaches what looks at calls."""
        super()._set_group_desc(desc)
        inner = self._inner
        inner._set_group_name(self.group_name)
        inner._set_group_desc(desc)
        c10d = dist.distributed_c10d
        attach = getattr(c10d, "_maybe_attach_flight_recorder", None)
        if attach is not None and self._recorder is None:
            ranks = self._comity._settings.global_ranks_in_group or range(self._comity._size)
            attach(inner, dist.BackendConfig(dist.Backend("comity")), list(ranks))
            # Torch keeps it for groups that it knows.
            self._recorder = c10d._world.pg_flight_recorder_hooks.pop(inner, None)
        if os.environ.get("TORCH_DIST_NAN_CHECK") == "1":
            _c10d.NanCheckHook.attach(inner)

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices that the group was made for, once torch has told."""
        config = dist.distributed_c10d._world.pg_backend_config.get(self, "")
        named = {
            device for device, _, backend in (pair.partition(":") for pair in config.split(",")) if backend
        }
        return [device for device in super()._device_types if not named or device.type in named]

    def rank(self) -> int:
        return self._comity._rank

    def size(self) -> int:
        return self._comity._size

    # The names by which C++ asks.
    getRank, getSize = rank, size

    @property
    def supports_reconfigure(self) -> bool:
        return self._comity.supports_reconfigure

    def get_reconfigure_handle(self) -> str:
        return self._comity.get_reconfigure_handle()

    def reconfigure(self, opts: Any) -> Any:
        """Form the group anew, of the members with these handles."""
        return self._comity.reconfigure(opts)

    def getBackendName(self) -> str:
        """The name in DistributedDataParallel's log."""
        return "comity"

    def split_group(
        self,
        ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Iterable[torch.device] | None = None,
    ) -> Group | None:
        """The part of this group with these ranks; None on ranks that are in no part. C++'s own ends the process of such a rank."""
        backend, ranks = self._comity, list(ranks)
        if backend._rank not in ranks:
            backend.left_out()
            return None
        name = group_name or f"{self.group_name}:split:{backend._splits + 1}"
        store = dist.PrefixStore(f"{name}/", self.get_group_store())
        settings = _c10d.Backend.Options("comity", timeout=timedelta(seconds=backend._limit))
        settings._timeout = timeout or getattr(opts, "_timeout", None) or settings._timeout
        settings.group_name = name
        part = Group(backend.split(store, ranks, settings), store, device_types or set(self._device_types))
        part._set_group_name(name)
        part._set_group_desc(group_desc or f"{self.group_desc}:split")
        return part


def _returning_ours(name: str) -> Callable[..., Any]:
    """Torch's method of that name, which returns the work that the backend made."""
    base = getattr(dist.ProcessGroup, name)

    def call(self: Group, *args: Any, **options: Any) -> Any:
        held = base(self._inner, *args, **options)
        if held is None:
            return None
        work, made.work = made.work, None
        return held if work is None else work

    call.__name__ = name
    return tracing.skipped(call)


def _of_inner(name: str) -> Callable[..., Any]:
    """Torch's method of that name, on the group that makes the calls."""

    def call(self: Group, *args: Any) -> Any:
        return getattr(self._inner, name)(*args)

    return call


tracing.skip_methods(Group, Work, StreamWork, DeviceGroup, Done, Future)
for _name in _CALLS:
    if hasattr(dist.ProcessGroup, _name):
        setattr(Group, _name, _returning_ours(_name))
for _name in _HOOKS:
    setattr(Group, _name, _of_inner(_name))
for _name, _before in _RENAMED.items():
    _known = _name if hasattr(dist.ProcessGroup, _name) else _before
    setattr(Group, _known, _returning_ours(_known))
