"""Comity's process group for torchft: what its manager and its DistributedDataParallel count on."""

from __future__ import annotations

import signal

import pytest
import torchft_bodies as bodies
from torch_ranks import Ranks


@pytest.mark.parametrize("managed", [True, False])
def test_a_sum_that_loses_a_replica_ends_the_step_and_not_the_program(ranks: Ranks, managed: bool) -> None:
    first, killed, last = ranks.run(3, bodies.loses_one, managed, init=None, may_die=(1,))
    assert str(-signal.SIGKILL) in killed
    # Without a manager nobody would ask for the error.
    assert first == last == ("no sum failed" if managed else "a sum failed: rank 1", 2.0)


@pytest.mark.parametrize("how", ["abort", "configure"])
def test_a_sum_that_hangs_is_ended_from_outside_and_the_process_goes_on(ranks: Ranks, how: str) -> None:
    first, second = ranks.run(2, bodies.ended_from_outside, how, init=None)
    # What a `configure` gives up cannot be told by `errored`, which is of the next group.
    assert first == (("ends the step", "AbortedError", 2.0) if how == "abort" else ("AbortedError", "", 2.0))
    assert second == ("", "", 2.0)
