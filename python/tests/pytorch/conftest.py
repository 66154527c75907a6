"""Fixtures of the tests with torch. Without torch there is nothing to test here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

from torch_ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    r = Ranks()
    # All at once: importing torch is most of a short run.
    r.start(4)
    yield r
    r.stop()
