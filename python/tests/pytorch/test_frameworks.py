"""accelerate, transformers' Trainer and Lightning on the backend, on 2 and 4 processes, with results equal to gloo's."""

from __future__ import annotations

import framework_bodies as bodies
import pytest
from ports import free_ports
from torch_ranks import Ranks

#: A first import of transformers by four processes takes most of it.
LIMIT = 300.0


@pytest.fixture
def ports() -> tuple[int, int]:
    """Two that nobody listens at."""
    first, second = free_ports(2)
    return first, second


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("body", [bodies.accelerate, bodies.trainer], ids=lambda b: b.__name__)
def test_hugging_face(ranks: Ranks, body: object, size: int, ports: tuple[int, int]) -> None:
    ranks.run(size, body, ports[0], init=None, limit=LIMIT)


@pytest.mark.parametrize("size", [2, 4])
def test_lightning(ranks: Ranks, size: int, ports: tuple[int, int]) -> None:
    ranks.run(size, bodies.lightning, ports, init=None, limit=LIMIT)
