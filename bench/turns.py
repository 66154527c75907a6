"""Backends of torch in the same processes, taking turns: what the benchmarks beside this file share."""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def start(rank_main: Callable[[int, argparse.Namespace, int], None], args: argparse.Namespace) -> None:
    """Run `rank_main(rank, args, port)` in `args.ranks` processes, and wait for them."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=rank_main, args=(r, args, port)) for r in range(args.ranks)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    if any(p.exitcode for p in ranks):
        raise SystemExit("a rank failed")


def alternate(
    what: Callable[[str], float],
    names: Iterable[str],
    rounds: int,
    ready: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Times of each, one after the other in every round, and the other way around in every second; the first round warms up."""
    import torch.distributed as dist

    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds + 1):
        for name, kept in list(times.items())[:: -1 if i % 2 else 1]:
            ready()
            dist.barrier()
            took = what(name)
            if i:
                kept.append(took)
    return times


def line(title: str, times: dict[str, list[float]], scale: float) -> str:
    """Medians with their ranges, and how many times those of comity the other's are."""
    medians = {name: statistics.median(v) * scale for name, v in times.items()}
    spread = {name: f"[{min(v) * scale:.2f}-{max(v) * scale:.2f}]" for name, v in times.items()}
    parts = "  ".join(f"{name} {medians[name]:.2f} {spread[name]}" for name in times)
    ratios = [f"{name}/comity {m / medians['comity']:.2f}" for name, m in medians.items() if name != "comity"]
    return "  ".join([f"{title:58} {parts}", *ratios])


def mlp() -> nn.Module:
    from torch import nn

    layers = [nn.Linear(784, 2160), nn.ReLU()]
    for _ in range(5):
        layers += [nn.Linear(2160, 2160), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2160, 10))
