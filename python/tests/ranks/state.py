"""State that some ranks hold and others lack, in arrays of every kind; and groups that form again while nothing is wrong."""

import mlx.core as mx
import numpy as np
import pytest
import torch

import comity
from comity import mlx as dist


def check_state_of_every_kind(g: comity.Group) -> None:
    holds = g.rank == g.size - 1
    mark = 7 if holds else g.rank
    plain = np.full((2, 3), mark, np.float32)
    flipped = np.full((4, 2), mark, np.int64).T
    tensor = torch.full((5,), float(mark))
    tied = tensor.view(5)
    turned = torch.full((2, 3), mark, dtype=torch.bfloat16).t()
    same = np.ones(1000)
    given = [plain, flipped, tensor, tied, turned, same, mx.full((3,), mark), mark, b"x" if holds else b"y"]
    got = g.sync(given, holds)
    # Those that can be changed are.
    assert all(a is b for a, b in zip(given[:6], got[:6], strict=True))
    for x in (plain, flipped, tensor, tied, turned):
        assert (x == 7).all(), x
    assert (same == 1).all()
    assert isinstance(got[6], mx.array)
    assert (got[6].tolist(), got[7], got[8]) == ([7, 7, 7], 7, b"x")
    with pytest.raises(comity.MisuseError, match="overlap"):
        g.sync([tensor, tensor[1:]], holds)
    with pytest.raises(comity.ConfigError, match="no rank says that it holds"):
        g.sync([1], False)


def check_what_is_kept(g: comity.Group) -> None:
    x = np.full(5, g.rank + 1.0)
    assert g.all_reduce_or_keep(x) is x
    total = sum(range(1, g.size + 1))
    assert (x == total).all()
    assert g.all_reduce_or_keep(mx.array([2.0]), "max").tolist() == [2.0]
    other = g.split(0)
    # All have left the split before it fails.
    g.barrier()
    other.abort("no more data")
    with pytest.raises(comity.AbortedError, match="restart the job or call the group's reform"):
        other.all_reduce_or_keep(x)
    assert (x == total).all()


def check_a_healthy_group_forms_again(g: comity.Group) -> None:
    part = g.split(0)
    assert part.joiners() == 0
    part.timeout = 30
    made = part.reform(fewest=g.size)
    assert (made.left, made.joined, part.closed) == ([], [], True)
    assert (made.group.rank, made.group.size, made.group.timeout) == (g.rank, g.size, 30)
    assert made.group.all_sum(1) == g.size
    with pytest.raises(comity.GroupClosedError):
        part.barrier()
    with pytest.raises(comity.ConfigError, match="fewest"):
        made.group.reform(fewest=g.size + 1)
    # Functions use the group that follows.
    assert comity.reform().group is comity.init()
    assert comity.all_reduce(1) == g.size
    # As those of MLX do.
    made = dist.init().reform()
    assert made.group is dist.init() and isinstance(made.group, dist.Group)
    assert (made.group.size(), type(comity.init())) == (g.size, comity.Group)
    assert made.group.sync([mx.array([2.0])], True)[0].tolist() == [2.0]
    assert dist.all_sum(mx.array([1.0])).tolist() == [g.size]
    if g.size > 1:
        other = comity.init().split(0)
        comity.barrier()
        with pytest.raises((comity.MismatchError, comity.PeerLostError), match="called reform"):
            other.reform() if g.rank == 0 else other.barrier()
