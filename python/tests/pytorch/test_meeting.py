"""Groups that are made again at one store: after others, after tries that failed, and what they leave behind."""

from __future__ import annotations

import sys

import meeting_bodies as bodies
import pytest
from torch_ranks import Ranks


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_meet_again_after_tries_that_failed(ranks: Ranks, size: int) -> None:
    ranks.run(size, bodies.again, init=None)


def test_a_rank_that_failed_meets_those_that_wait(ranks: Ranks) -> None:
    ranks.run(3, bodies.late_again, init=None)


def test_an_interrupted_try_leaves_the_store_to_the_next(ranks: Ranks) -> None:
    assert max(ranks.run(2, bodies.interrupt, init=None)) < 20


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux shows")
def test_groups_and_failed_tries_leave_nothing_behind(ranks: Ranks) -> None:
    ranks.run(2, bodies.left_behind, init=None)
