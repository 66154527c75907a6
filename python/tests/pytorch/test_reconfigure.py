"""Groups whose members change, as torch's fault tolerance has it: `reconfigure` and `shrink_group`."""

from __future__ import annotations

import signal

import pytest
import reconfigure_bodies as bodies
import torch.distributed as dist
from torch_ranks import Ranks

NEW = hasattr(dist.distributed_c10d, "_reconfigure")
pytestmark = pytest.mark.skipif(not NEW, reason="torch 2.15 and newer")


def test_a_group_is_configured_and_ranks_are_as_the_handles_say(ranks: Ranks) -> None:
    ranks.run(3, bodies.configured, init=None)


def test_wrong_handles_and_used_numbers_are_refused(ranks: Ranks) -> None:
    words = ["no handles", "given twice", "'gloo:1' is no handle", "is not among those given", "already used"]
    for rank, said in enumerate(ranks.run(2, bodies.refused, init=None)):
        assert len(said) == len(words) + (rank == 0), said
        assert all(w in s for w, s in zip(words, said, strict=False)), said


def test_those_that_are_left_go_on(ranks: Ranks) -> None:
    first, killed, last = ranks.run(3, bodies.survives, init=None, may_die=(1,))
    assert str(-signal.SIGKILL) in killed
    assert (first, last) == ((0, 3.0), (1, 3.0))


def test_a_group_is_shrunk(ranks: Ranks) -> None:
    assert ranks.run(3, bodies.shrunk) == [(0, 2, 2.0), (1, 2, 2.0), None]
