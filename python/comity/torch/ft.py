"""Comity as a process group of torchft: ``Manager(pg=comity.torch.ft.ProcessGroupComity(), ...)``.

Needs the package torchft, which this module imports.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from comity._torch import DEVICES
from comity.errors import MisuseError

from .versions import choose

__all__ = ["ProcessGroupComity"]


class ProcessGroupComity(ProcessGroupWrapper):
    """A process group of torchft's that Comity carries. `configure` forms a new group at the store that it is told. The one before ends.

    A failed call says within the detection limit which rank is at fault; `errored` has that until the next `configure`.

    Args:
        timeout: The limit of a call, and of forming a group.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        self._error: Exception | None = None

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        self._error = None
        opts = dist.distributed_c10d._DistributedBackendOptions()
        opts.store, opts.group_rank, opts.group_size = store, rank, world_size
        opts.timeout, opts.group_id = self._timeout, f"torchft_quorum_{self._quorum_id}"
        opts.global_ranks_in_group = self._global_ranks or []
        if choose(torch.__version__) == "group":
            from .process_group import create as make

            return make(opts, None)
        from .backend import create as make
        from .group import Group

        return Group(make(opts, None), store, map(torch.device, DEVICES))

    def getBackendName(self) -> str:
        return "torchft-comity"

    def _wrap_work(self, work: Any, opts: Any) -> Any:
        pg = self._pg

        def note(error: BaseException | None) -> None:
            # A mistake leaves the group as it was; and one that was given up tells nothing of the next.
            if isinstance(error, Exception) and not isinstance(error, MisuseError) and self._pg is pg:
                self._error = self._error or error

        work.add_done_callback(note)
        # The manager's callbacks make no calls, and count on running at once where the work has ended: they take no turns.
        work.turns = None
        return work

    def errored(self) -> Exception | None:
        """What the first call failed with since `configure`; None while all is well."""
        return self._error

    def shutdown(self) -> None:
        """Leave the group in good order."""
        pg, self._pg = self._pg, None
        if pg is not None:
            pg.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """The limit of later calls, and of forming a group."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)
