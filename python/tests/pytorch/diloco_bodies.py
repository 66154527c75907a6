"""What ranks do in `test_diloco.py`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import comity
from comity.torch.diloco import DiLoCo

DIGITS = Path(__file__).parents[3] / "data" / "digits.csv"
KEY = bytes(range(32))
TESTED, BATCH, STEPS, EVERY, FRAGMENTS = 300, 32, 320, 20, 2


def digits() -> tuple[Tensor, Tensor]:
    rows = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    rows = torch.from_numpy(rows[np.random.default_rng(0).permutation(len(rows))])
    return rows[:, :-1] / 16, rows[:, -1].long()


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train(model: nn.Module, optimizer: Any, rows: Tensor, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (model(x[:TESTED]).argmax(1) == y[:TESTED]).float().mean().item()


def together(_rank: int, _size: int, _store: Any, size: int) -> float:
    """The accuracy of plain data parallel training, whose ranks have one batch between them."""
    x, y = digits()
    model, rows = network(0), torch.Generator().manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        train(model, optimizer, torch.randint(TESTED, len(x), (size * BATCH,), generator=rows), x, y)
    return accuracy(model, x, y)


def apart(rank: int, size: int, store: Any) -> tuple[int, float, float, int]:
    """The last rank joins later; rank 1 is killed between two outer steps.

    How many ranks there are at the end, the accuracy, the weights, the outer steps.
    """
    first = size - 1
    joins = rank == first
    if rank == 0:
        meeting = comity.Store(first, key=KEY, job="diloco")
        store.set("address", meeting.address)
    at = {"store": store.get("address").decode(), "job": "diloco", "key": KEY, "timeout": 30}
    if joins:
        # When the other has been killed.
        store.get("half")
        group = comity.init(join=True, **at)
    else:
        group = comity.init(rank=rank, size=first, **at)
    x, y = digits()
    model = network(rank)
    diloco = DiLoCo(model.parameters(), group, every=EVERY, fragments=FRAGMENTS, joins=joins)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = torch.Generator().manual_seed(7 + rank)
    while diloco.outer_steps < STEPS * FRAGMENTS // EVERY:
        train(model, optimizer, torch.randint(TESTED, len(x), (BATCH,), generator=rows), x, y)
        if rank == 1 and diloco.outer_steps == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        diloco.step()
        if diloco.group.size == first - 1:
            store.set("half", "done")
            # It is slow to come: the others do not end before.
            while not diloco.group.joiners():
                time.sleep(0.01)
    diloco.settle()
    weights = sum(p.double().abs().sum().item() for p in model.parameters())
    diloco.group.barrier()
    return diloco.group.size, accuracy(model, x, y), weights, diloco.outer_steps
