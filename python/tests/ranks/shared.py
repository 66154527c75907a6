"""Arrays that the other ranks of this host read where they lie."""

import numpy as np
import pytest
import torch

import comity

LONG = 1 << 18


def check_numpy(g: comity.Group) -> None:
    x = g.empty((4, LONG // 4), np.float32)
    assert x.shape == (4, LONG // 4)
    assert not x.any()
    assert (x.base.why_not is None) == (g.size > 1 and "shm" in g.links), x.base.why_not
    for turn in range(3):
        mine = np.arange(LONG, dtype=np.float32).reshape(x.shape) + g.rank * turn
        x[:] = mine
        private = g.all_sum(mine)
        assert g.all_reduce(x, out=x) is x
        np.testing.assert_array_equal(x.view(np.uint32), private.view(np.uint32), "the same bits")
        np.testing.assert_array_equal(g.broadcast(x, g.size - 1), private)
    part = g.empty(3)
    assert part.dtype == np.float32
    assert "shorter" in part.base.why_not or g.size == 1
    assert g.empty((0, 2), "int32").shape == (0, 2)


def check_torch(g: comity.Group) -> None:
    x = g.empty((2, LONG), torch.bfloat16)
    assert x.dtype == torch.bfloat16
    assert x.shape == (2, LONG)
    for _ in range(3):
        x.fill_(1.0)
        g.all_reduce(x, out=x)
        assert bool((x == g.size).all())
    assert g.empty((0,), torch.int64).shape == (0,)


def check_other_types(g: comity.Group) -> None:
    with pytest.raises(comity.MisuseError, match="float8"):
        g.empty(LONG, torch.float8_e5m2)
