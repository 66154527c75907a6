"""Draws from what would take long to run as a whole: COMITY_TEST_SEED says which (0 if it is not set), COMITY_TEST_DEEP=1 takes all."""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

SEED = int(os.environ.get("COMITY_TEST_SEED", "0"))
DEEP = os.environ.get("COMITY_TEST_DEEP") == "1"
#: What was drawn, for the end of the run.
_drawn: list[str] = []


def drawn(what: str, among: Sequence[T], n: int = 1) -> list[T]:
    """`n` of them, in their order."""
    if DEEP:
        return [*among]
    places = sorted(random.Random(f"{SEED} {what}").sample(range(len(among)), n))
    _drawn.append(f"{what} {', '.join(str(among[i]) for i in places)} of {', '.join(map(str, among))}")
    return [among[i] for i in places]


def said() -> str:
    """What was drawn, in a line."""
    return f"COMITY_TEST_SEED={SEED}: {'; '.join(_drawn) or 'nothing was drawn'}"
