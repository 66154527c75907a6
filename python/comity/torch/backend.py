"""The backend for torch 2.14 and newer: c10d's `Backend` in Python, one of a process group's devices."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as _c10d

from . import tracing
from .lifecycle import Lifecycle, Options
from .reconfigure import KNOWN

#: Methods that C++ calls and that return a work.
_CALLS = [
    "allreduce", "allreduce_sparse", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced", "_allgather_base",
    "all_gather_single", "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "gather", "gather_single", "scatter",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
    "alltoall", "alltoall_base", "all_to_all_single", "barrier", "send", "recv", "recv_anysource", "end_coalescing",
]  # fmt: skip


class _Made(threading.local):
    """The work of the call that this thread made last, for `group.py`, which takes it."""

    work: Any = None


made = _Made()


class Backend(Lifecycle, _c10d.Backend):
    """See the module."""

    _alone = False

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        settings: Any,
        options: Options,
        name: str,
        group: Any = None,
        waits: bool = False,
    ) -> None:
        _c10d.Backend.__init__(self, rank, size)
        self._settings = settings
        self._begin(store, rank, size, timeout, options, name, settings.global_ranks_in_group, group, waits)

    # C++ keeps those of the beginning, and they may change.
    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    @property
    def options(self) -> Any:
        return self._settings

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_abort_hooks(self) -> bool:
        return False

    # Torch's own answer to these asks this class again, for ever.
    supports_window = supports_time_estimate = False
    supports_tensor_alloc = supports_completion_hooks = False

    supports_shrinking = True

    @property
    def supports_reconfigure(self) -> bool:
        # Torch's own process group, over several backends, keeps the numbers of the beginning.
        return KNOWN and self._alone

    def reconfigure(self, opts: Any) -> Any:
        done = super().reconfigure(opts)
        if self._settings.global_ranks_in_group:
            self._settings.global_ranks_in_group = list(range(self._size))
        return done

    def shrink(
        self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None
    ) -> Backend:
        """The group of the other ranks, which meet at the store: those that are left out need not live."""
        self._check_open("shrink")
        ranks = [r for r in range(self._size) if r not in set(ranks_to_exclude)]
        store = self._shrink_store(ranks)
        if shrink_flags:
            self.abort()
        settings = opts_override or _c10d.Backend.Options("comity", timeout=timedelta(seconds=self._limit))
        world = self._settings.global_ranks_in_group
        settings.global_ranks_in_group = [world[r] for r in ranks] if world else ranks
        name = f"{self._name}:shrunk"
        settings.group_name = name
        mine = ranks.index(self._rank)
        return Backend(store, mine, len(ranks), settings._timeout, settings, self._options, name)

    def left_out(self) -> None:
        """A split in which this rank has no part: the label of the next one is the same on every rank."""
        self._check_open("split")
        self._splits += 1

    def perform_nocolor_split(self, device: Any) -> None:
        """What torch calls on ranks that are not in a new group of a world with a device: only members make it."""

    def split(self, store: Any, ranks: list[int], settings: Any) -> Backend | None:
        ranks = list(ranks)
        world = self._settings.global_ranks_in_group
        settings.global_ranks_in_group = [world[r] for r in ranks] if world else ranks
        if self._rank not in ranks:
            # Torch's C++ looks into what it gets here, also where that is nothing.
            raise self._misuse(
                "split",
                f"split_group of a group of several backends needs this rank in one of its parts, not in none ({ranks}): "
                "use new_group, or a group of the backend comity alone",
            )
        group = self._part(ranks)
        timeout, name = settings._timeout, settings.group_name
        part = Backend(
            store, ranks.index(self._rank), len(ranks), timeout, settings, self._options, name, group
        )
        part._try = self._try
        return part


def _noted(method: Callable[..., Any]) -> Callable[..., Any]:
    """The call, whose work the group finds in `made`."""

    @functools.wraps(method)
    def call(self: Backend, *args: Any, **options: Any) -> Any:
        work = method(self, *args, **options)
        if self._alone:
            made.work = work
        return work

    return tracing.skipped(call)


for _name in _CALLS:
    setattr(Backend, _name, _noted(getattr(Backend, _name)))


def create(opts: Any, settings: Any) -> Backend:
    """What `init_process_group` and `new_group` call."""
    options = settings if isinstance(settings, Options) else Options()
    if settings is None or settings is options:
        settings = _c10d.Backend.Options("comity", timeout=opts.timeout)
    settings._timeout = opts.timeout
    settings.global_ranks_in_group = opts.global_ranks_in_group
    settings.group_name = opts.group_id
    return Backend(
        opts.store,
        opts.group_rank,
        opts.group_size,
        opts.timeout,
        settings,
        options,
        opts.group_id,
        waits=getattr(opts, "enable_reconfigure", False),
    )
