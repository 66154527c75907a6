"""PyTorch's training stacks on the backend, on 2 and 4 processes, with results equal to gloo's."""

from __future__ import annotations

import compile_bodies
import own_bodies
import pytest
import stack_bodies as bodies
from sampling import drawn
from torch_ranks import Ranks


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "body",
    [
        bodies.ddp,
        bodies.uneven_inputs,
        bodies.hooks,
        bodies.zero,
        bodies.overlapped_zero,
        bodies.fsdp2,
        bodies.tensor_parallel,
        bodies.checkpoint,
        bodies.pipeline,
        own_bodies.compression,
        own_bodies.hooks_on_wires,
        own_bodies.feedback,
    ],
    ids=lambda b: b.__name__,
)
def test_stack(ranks: Ranks, body: object, size: int) -> None:
    ranks.run(size, body)


@pytest.mark.parametrize("size", drawn("ranks with torch.compile:", [2, 4]))
def test_compiled(ranks: Ranks, size: int) -> None:
    ranks.run(size, bodies.compiled)


def test_compiled_calls(ranks: Ranks) -> None:
    # Compiling takes seconds a form on a busy machine.
    assert ranks.run(2, compile_bodies.forms, limit=180) == [[], []]


def test_metrics(ranks: Ranks) -> None:
    for m in ranks.run(2, own_bodies.metrics):
        assert m["total_ops"] == 3 and m["errors"] == 0, m
        one = m["ops"]["all_reduce"]
        assert one["total_ops"] == 2 and one["bytes"] == 8000 and 0 < one["p50_ms"] <= one["p99_ms"], m
        assert m["bytes_sent"] >= 8000 and m["ops"]["barrier"]["total_ops"] == 1, m
