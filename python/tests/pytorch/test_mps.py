"""Tensors of Apple GPUs, by a stand-in on 2 and 3 processes: torch 2.14 and newer, which pass calls through c10d's kernels."""

from __future__ import annotations

import mps_bodies as bodies
import pytest
from torch_ranks import Ranks


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "body",
    [bodies.order, bodies.calls, bodies.several, bodies.sends, bodies.without],
    ids=lambda b: b.__name__,
)
def test_body(ranks: Ranks, body: object, size: int) -> None:
    ranks.run(size, body, init=None)
