"""Stand-ins for what torchft's example programs need and a test has not: pictures, curves, memory for layers of 1 GB.

`torchft_examples.py` has the programs import this module first.

Each step is written to the file COMITY_EXAMPLE_STEPS, with the time, the step's number, how many replicas took part, and whether it counts.
Once the file COMITY_EXAMPLE_HALT is there, the next sum halts before it is called.
"""

from __future__ import annotations

import os
import sys
import time
import types
from typing import Any

import torch
import torch.utils.data
import torchft

torch.set_num_threads(1)
#: Elements of the layers that only give the programs something to send: 4 MiB of them.
MOST = 1 << 20


class Pictures(torch.utils.data.Dataset):
    """Noise of CIFAR10's shape, in classes by its mean."""

    def __init__(self, **_: Any) -> None:
        self.targets = [i % 10 for i in range(2048)]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        noise = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(int(i)))
        return noise + self.targets[i] / 10, self.targets[i]


class Silent:
    """A profiler, a writer of curves, a transformation of pictures: all calls do nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


class Embedding(torch.nn.Embedding):
    def __init__(self, rows: int, width: int, **options: Any) -> None:
        super().__init__(min(rows, MOST // width), width, **options)


def module(name: str, **content: Any) -> types.ModuleType:
    sys.modules[name] = made = types.ModuleType(name)
    made.__dict__.update(content)
    return made


module(
    "torchvision",
    datasets=module("torchvision.datasets", CIFAR10=Pictures),
    transforms=module("torchvision.transforms", Compose=Silent, ToTensor=Silent, Normalize=Silent),
)
module("utils", get_cifar10_dataset=Pictures)
module("torch.utils.tensorboard", SummaryWriter=Silent)
torch.profiler.profile = Silent
torch.nn.Embedding = Embedding

_allreduce, _should_commit = torchft.Manager.allreduce, torchft.Manager.should_commit


def allreduce(manager: torchft.Manager, *args: Any, **options: Any) -> Any:
    halt = os.environ["COMITY_EXAMPLE_HALT"]
    if os.path.exists(halt):
        with open(f"{halt}ed", "w"):
            time.sleep(600)
    return _allreduce(manager, *args, **options)


def should_commit(manager: torchft.Manager, *args: Any, **options: Any) -> bool:
    counts = _should_commit(manager, *args, **options)
    with open(os.environ["COMITY_EXAMPLE_STEPS"], "a") as out:
        out.write(
            f"{time.monotonic():.4f} {manager.current_step()} {manager.num_participants()} {int(counts)}\n"
        )
    return counts


torchft.Manager.allreduce, torchft.Manager.should_commit = allreduce, should_commit
