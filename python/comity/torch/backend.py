"""The backend for torch 2.14 and newer: c10d's `Backend` in Python, one of a process group's devices."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as _c10d

from . import shims
from .lifecycle import Lifecycle, Options


class Backend(Lifecycle, _c10d.Backend):
    """See the module."""

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
    ) -> None:
        _c10d.Backend.__init__(self, rank, size)
        self._settings = settings
        self._begin(store, rank, size, timeout, options, name, group)
        shims.install()

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
    supports_reconfigure = supports_shrinking = supports_window = supports_time_estimate = False
    supports_tensor_alloc = supports_completion_hooks = False

    def split(self, store: Any, ranks: list[int], settings: Any) -> Backend | None:
        ranks = list(ranks)
        world = self._settings.global_ranks_in_group
        settings.global_ranks_in_group = [world[r] for r in ranks] if world else ranks
        if self._rank not in ranks:
            # The label of the next split is the same on every rank.
            self._splits += 1
            return None
        group = self._part(ranks)
        timeout, name = settings._timeout, settings.group_name
        return Backend(
            store, ranks.index(self._rank), len(ranks), timeout, settings, self._options, name, group
        )


def create(opts: Any, settings: Any) -> Backend:
    """What `init_process_group` and `new_group` call."""
    options = settings if isinstance(settings, Options) else Options()
    if settings is None or settings is options:
        settings = _c10d.Backend.Options("comity", timeout=opts.timeout)
    settings._timeout = opts.timeout
    settings.global_ranks_in_group = opts.global_ranks_in_group
    settings.group_name = opts.group_id
    return Backend(
        opts.store, opts.group_rank, opts.group_size, opts.timeout, settings, options, opts.group_id
    )
