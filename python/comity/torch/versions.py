"""Which torch this is, and what follows from it."""

from __future__ import annotations

import re

import torch

from comity.errors import ConfigError, UnavailableError

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


def refuse_others(config: str) -> None:
    """Refuse a group of these devices and backends if it has others than Comity, whose process group serves all its devices."""
    pairs = config.split(",")
    others = [pair for pair in pairs if pair.split(":")[-1] != "comity"]
    if not others:
        return
    names = ", ".join(sorted({pair.split(":")[-1] for pair in others}))
    if VERSION < BACKENDS:
        raise ConfigError(
            f"torch {torch.__version__} cannot combine comity with {names} in one group ({config!r}): "
            "use torch 2.14 or newer, or make a group of its own for each with new_group(backend=...)"
        )
    order = ",".join([*others, *(pair for pair in pairs if pair not in others)])
    raise ConfigError(
        f"torch told comity too late that the group has {names} as well ({config!r}): name comity last, as in {order!r}"
    )


VERSION = parse(torch.__version__)
