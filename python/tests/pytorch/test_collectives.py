"""Every collective of torch.distributed through the backend, on 1 to 4 processes."""

from __future__ import annotations

import collective_bodies as bodies
import dtype_bodies
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


def test_every_dtype_is_moved_right_or_refused_by_name(ranks: Ranks) -> None:
    for said in ranks.run(2, dtype_bodies.every_dtype):
        assert len(said) == 2 * len(dtype_bodies.all_dtypes())
        for key, calls in said.items():
            dtype = key.split()[0]
            for call, what in calls.items():
                refused = what[0] == "MisuseError" and dtype in what[1]
                if "torch.q" in dtype:
                    assert refused, (key, call, what)
                else:
                    assert what == "right" or (call == "all_reduce" and refused), (key, call, what)
