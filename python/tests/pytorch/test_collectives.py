"""Every collective of torch.distributed through the backend, on 1 to 4 processes."""

from __future__ import annotations

import collective_bodies as bodies
import pytest
import send_bodies
import strided_bodies
from torch_ranks import Ranks

EVERYWHERE = [
    bodies.reductions,
    bodies.shapes,
    bodies.moving,
    bodies.uneven,
    bodies.reduce_and_scatter,
    bodies.coalesced,
    bodies.objects,
    bodies.works,
    bodies.sparse,
    bodies.groups,
    bodies.functional,
    bodies.options,
    strided_bodies.strided,
]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("body", EVERYWHERE, ids=lambda b: b.__name__)
def test_body(ranks: Ranks, body: object, size: int) -> None:
    ranks.run(size, body)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_mailbox(ranks: Ranks, size: int) -> None:
    ranks.run(size, send_bodies.mailbox)


@pytest.mark.parametrize("size", [2, 3])
def test_sends_of_strided_tensors(ranks: Ranks, size: int) -> None:
    ranks.run(size, strided_bodies.sent)
