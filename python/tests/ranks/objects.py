"""Objects between ranks."""

import numpy as np
import pytest

import comity


class Custom:
    """Something that only a pickle can carry."""

    def __init__(self, value: int) -> None:
        self.value = value


VALUES = [
    None,
    True,
    -3,
    1 << 80,
    0.1,
    float("inf"),
    "text with \N{SNOWMAN} and \0",
    b"\0\xff",
    [],
    (),
    {},
    [1, [2, (3, None)]],
    {"a": {"b": [1.5]}, "c": ()},
    {1: "one", None: 2, (1, 2): "pair", "!": "tag"},
    {"!": "tuple", "of": [1]},
    "x" * 100_000,
]


def check_plain_values(g: comity.Group) -> None:
    for value in VALUES:
        for root in (0, g.size - 1):
            got = g.broadcast_object(value if g.rank == root else "other", root)
            assert got == value
            assert type(got) is type(value)
    assert g.all_gather_object({"rank": g.rank}) == [{"rank": r} for r in range(g.size)]
    assert g.all_gather_object("x" * g.rank * 1000) == ["x" * r * 1000 for r in range(g.size)]
    objs = [("to", r, "x" * r) for r in range(g.size)]
    for root in range(g.size):
        assert g.scatter_object(objs if g.rank == root else None, root) == objs[g.rank]
    assert np.isnan(comity.broadcast_object(float("nan"), group=g))


def check_arrays(g: comity.Group) -> None:
    state = {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T, "n": [np.int64(3), np.zeros((0, 2))]}
    got = g.broadcast_object(state if g.rank == 0 else None)
    np.testing.assert_array_equal(got["w"], state["w"])
    assert got["w"].dtype == np.float32
    assert got["n"][0] == 3
    assert got["n"][1].shape == (0, 2)
    got["w"][0, 0] = 5


def check_pickles_are_refused_unless_allowed(g: comity.Group) -> None:
    for call in (
        lambda: g.broadcast_object(Custom(3)),
        lambda: g.all_gather_object(Custom(3)),
        lambda: g.scatter_object([Custom(3)] * g.size),
    ):
        with pytest.raises(comity.MisuseError, match=r"Custom cannot be passed as JSON.*allow_pickle"):
            call()
    assert g.broadcast_object(Custom(g.rank), g.size - 1, allow_pickle=True).value == g.size - 1
    assert [c.value for c in g.all_gather_object(Custom(g.rank), allow_pickle=True)] == list(range(g.size))
    # A rank that does not allow them refuses what another sends.
    sender = 0
    if g.rank == sender:
        assert g.broadcast_object({1, 2}, sender, allow_pickle=True) == {1, 2}
    else:
        with pytest.raises(comity.MisuseError, match="rank 0 passed its object as a pickle") as e:
            g.broadcast_object(None, sender)
        assert e.value.rank == sender
    assert g.all_sum(1) == g.size, "the group goes on"


def check_wrong_numbers_of_objects_are_told_to_all(g: comity.Group) -> None:
    with pytest.raises(comity.MisuseError, match=rf"{g.size + 1} objects were given for {g.size} ranks") as e:
        g.scatter_object([0] * (g.size + 1) if g.rank == 0 else None)
    assert e.value.rank == 0
    assert g.all_sum(1) == g.size


def check_deep_and_cyclic_objects_end_in_an_error(g: comity.Group) -> None:
    cycle: list = []
    cycle.append(cycle)
    with pytest.raises(comity.MisuseError, match="RecursionError"):
        g.broadcast_object(cycle if g.rank == 0 else None)
    assert g.all_sum(1) == g.size
