"""Comity as a process group of torchft: ``Manager(pg=comity.torch.ft.ProcessGroupComity(), ...)``.

Needs the package torchft, which this module imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from comity._torch import DEVICES
from comity.errors import Error, MisuseError

from .versions import choose
from .work import Done, Work

__all__ = ["ProcessGroupComity"]


class ProcessGroupComity(ProcessGroupWrapper):
    """A process group of torchft's that Comity carries. `configure` forms a new group at the store that it is told. The one before ends.

    A failed call says within the detection limit which rank is at fault; `errored` has that until the next `configure`.

    A manager configures the group with a quorum's number. Then an `allreduce` that fails raises nothing, as with torchft's group over NCCL:
    the manager asks `errored` at the end of the step, and discards what the step computed. torchft 0.2.0's DistributedDataParallel ends
    the program where an `allreduce` raises.

    Args:
        timeout: The limit of a call, and of forming a group.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        self._error: Exception | None = None
        #: The group that the last `configure` gave up.
        self._given_up: Any = None

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

    @contextmanager
    def _run_context(self) -> Iterator[None]:
        """Each call is made in this."""
        pg = self._pg
        try:
            yield
        except Error as e:
            self._note(pg, e)
            raise

    def _wrap_work(self, work: Any, opts: Any) -> Any:
        # That of device memory has a stream of its own, and fails there.
        if isinstance(work, Work):
            pg = self._pg
            work.at_end(lambda error: self._note(pg, error))
            # The manager's callbacks make no calls, and count on running at once where the work has ended: they take no turns.
            work.turns = None
        return work

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        if self._quorum_id is None:
            return super().allreduce(tensors, opts)
        pg = self._pg
        try:
            work = super().allreduce(tensors, opts)
        except Error as e:
            if not self._note(pg, e):
                raise
            return Done(tensors)
        return Work(_Noted(work, lambda e: self._note(pg, e)), tensors) if isinstance(work, Work) else work

    def _note(self, pg: Any, error: BaseException | None) -> bool:
        """Keep what a call on this group failed with for `errored`; False for an error that says nothing of the group as it is."""
        # A mistake leaves the group as it was; and one that was given up tells nothing of the next. One that was aborted is None.
        is_of_this = pg is not self._given_up and (self._pg is pg or self._pg is None)
        failed = isinstance(error, Exception) and not isinstance(error, MisuseError) and is_of_this
        if failed:
            self._error = self._error or error
        return failed

    def errored(self) -> Exception | None:
        """What the first call failed with since `configure`; None while all is well."""
        return self._error

    def abort(self, errored: bool = True) -> None:
        """End what is under way. `errored`: it is no `configure` that does so."""
        if not errored:
            self._given_up = self._pg
        super().abort(errored)

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


class _Noted:
    """A request whose failure is noted elsewhere, and which then ends as if all had gone well."""

    def __init__(self, work: Work, note: Callable[[BaseException], bool]) -> None:
        self._work = work
        self._note = note

    def wait(self, timeout: float | None = None) -> None:
        try:
            self._work.wait(timeout)
        except Exception as e:
            # It may be under way still, and only the limit of this wait have passed.
            if not (self._work.done() and self._note(e)):
                raise

    def done(self) -> bool:
        return self._work.done()

    def exception(self) -> BaseException | None:
        return self._unnoted(self._work.exception())

    def add_done_callback(self, callback: Callable[[BaseException | None], Any]) -> None:
        self._work.add_done_callback(lambda error: callback(self._unnoted(error)))

    def _unnoted(self, error: BaseException | None) -> BaseException | None:
        return None if error is None or self._note(error) else error
