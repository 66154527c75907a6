"""Train a small network on 1,797 handwritten digits with DistributedDataParallel over Comity.

    comity launch -n 2 -- python examples/ddp_train.py --save-stats ddp.json
    torchrun --nproc-per-node 2 examples/ddp_train.py --save-stats ddp.json
    python examples/ddp_train.py --baseline --save-stats baseline.json     (one process, for comparison)

`examples/benchmark_throughput.py` compares what --save-stats keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import comity
import comity.torch

DIGITS = Path(__file__).parent.parent / "data" / "digits.csv"


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pixels, labels, and which rows are for training and for the test."""
    rows = torch.tensor([[float(x) for x in line.split(",")] for line in DIGITS.read_text().split()])
    order = torch.randperm(len(rows))
    return rows[:, :-1] / 16, rows[:, -1].long(), order[297:], order[:297]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--baseline", action="store_true", help="train in this process alone, without communication"
    )
    parser.add_argument("--backend", default="comity", help="comity, or gloo to compare with")
    parser.add_argument(
        "--compression", choices=["fp16", "bf16", "int8", "topk"], help="how gradients are sent"
    )
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=256, help="of all ranks together")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument(
        "--save-stats", metavar="FILE", help="write step times, losses and metrics as JSON (rank 0)"
    )
    return parser.parse_args()


def network(args: argparse.Namespace) -> nn.Module:
    model: nn.Module = nn.Sequential(
        nn.Linear(64, args.width),
        nn.ReLU(),
        nn.Linear(args.width, args.width),
        nn.ReLU(),
        nn.Linear(args.width, 10),
    )
    if args.baseline:
        return model
    model = DistributedDataParallel(model)
    hooks = comity.torch.hooks
    if args.compression == "topk":
        model.register_comm_hook(hooks.TopKState(0.05), hooks.top_k)
    elif args.compression:
        model.register_comm_hook(None, getattr(hooks, args.compression))
    return model


def report(
    args: argparse.Namespace, size: int, times: list[float], losses: list[float], right: float
) -> None:
    """Print how it went, and save it where that was asked for. `times`: seconds a step; `right`: the share of the test."""
    rate = args.batch * len(times[5:]) / sum(times[5:])
    print(f"{size} ranks: loss {losses[-1]:.3f}, {right:.1%} of the test digits right, {rate:.0f} samples/s")
    if not args.save_stats:
        return
    name = "one process" if args.baseline else f"{args.backend}, {size} ranks"
    name += f", {args.compression}" if args.compression else ""
    metrics = {} if args.baseline else comity.torch.get_metrics()
    stats = {
        "name": name,
        "batch": args.batch,
        "times": times,
        "losses": losses,
        "right": right,
        "metrics": metrics,
    }
    Path(args.save_stats).write_text(json.dumps(stats))


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if not args.baseline:
        # Under `comity launch` and torchrun alike: both set torch's variables.
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        dist.init_process_group(args.backend)
    rank = 0 if args.baseline else dist.get_rank()
    size = 1 if args.baseline else dist.get_world_size()

    pixels, labels, train, test = digits()
    model = network(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    times, losses = [], []
    for step in range(args.steps):
        begun = time.perf_counter()
        drawn = torch.randint(len(train), (args.batch,), generator=torch.Generator().manual_seed(step))
        mine = train[drawn[rank::size]]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
        losses.append(loss.item())
    with torch.no_grad():
        right = (model(pixels[test]).argmax(1) == labels[test]).float().mean().item()
    if rank == 0:
        report(args, size, times, losses, right)
    if not args.baseline:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
