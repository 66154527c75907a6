"""What a rank does in `test_launch.py`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any


def script(_rank: int, _size: int, _store: object, path: Path, args: list[Any]) -> None:
    """A program of one process, where torch is imported already."""
    before = sys.argv
    sys.argv = [str(path), *(str(a) for a in args)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before
