"""Fixtures of the tests with torch. Without torch there is nothing to test here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
# Torch asks for the name of every address that it connects to, and a server of names that loses a question costs 5 s.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
sys.path.insert(0, str(Path(__file__).parent))
# What both folders use; last, because both have a conftest.
sys.path.append(str(Path(__file__).parents[1]))

from torch_ranks import FRAMEWORKS, PRELOADED, Ranks


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    wanted = any(i.path.name == "test_frameworks.py" for i in request.session.items)
    r = Ranks([*PRELOADED, *(FRAMEWORKS if wanted else [])])
    # All at once: where they are not forked, importing torch is most of a short run.
    r.start(4)
    yield r
    r.stop()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sizes", help="only tests on so many processes, as in 2,4; tests that have no size run anyway"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--sizes") is None:
        return
    sizes = {int(s) for s in config.getoption("--sizes").split(",")}
    left_out = [
        i for i in items if hasattr(i, "callspec") and i.callspec.params.get("size", min(sizes)) not in sizes
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [i for i in items if i not in left_out]
