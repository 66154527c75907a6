"""Which torch this is, and what follows from it."""

from __future__ import annotations

import re

import torch

from comity.errors import UnavailableError

OLDEST = (2, 11)
#: From here on Python can subclass c10d's Backend, so that one group serves several devices.
BACKENDS = (2, 14)


def parse(version: str) -> tuple[int, int]:
    """Major and minor number of a version such as 2.15.0a0+git1234."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        raise UnavailableError(f"the backend comity cannot tell which torch {version!r} is")
    return int(numbers[1]), int(numbers[2])


def choose(version: str) -> str:
    """`backend` or `group`: what the backend is a subclass of on this version."""
    v = parse(version)
    if v < OLDEST:
        raise UnavailableError(
            f"the backend comity needs torch 2.11 or newer, and this is {version}; upgrade torch, or stay with gloo"
        )
    return "backend" if v >= BACKENDS else "group"


VERSION = parse(torch.__version__)
