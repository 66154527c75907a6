"""Lanes beside the threads that compute: a torch program whose ranks own several cores, with lanes, without, and over gloo.

    python bench/torch_threads.py                    # 2 ranks, half of the cores each
    python bench/torch_threads.py --ranks 4
    python bench/torch_threads.py --quick --lanes 2  # small sizes: shows that all of it runs

Needs torch, the package comity and a machine that does nothing else. Each rank computes with OMP_NUM_THREADS = its share of the cores. The
three variants start their ranks anew, in turns. Prints, for each measure, the median of the launches' medians and their range, in
milliseconds: all_reduce of one tensor (the slowest rank of each call), and steps of DistributedDataParallel, which computes while it sends.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import turns

if TYPE_CHECKING:
    import torch
    from torch import nn

VARIANTS = ("lanes", "no lanes", "gloo")
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, help="OMP_NUM_THREADS of a rank; its share of the cores if left out"
    )
    parser.add_argument(
        "--lanes", type=int, help="COMITY_LANES of the first variant; Comity's choice if left out"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and one round: no times to compare")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    args.threads = args.threads or max(1, cores // args.ranks)
    if args.quick:
        args.rounds = 1
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    seen: dict[str, dict[str, list[float]]] = {}
    lanes, losses, version = 0, set(), ""
    with tempfile.TemporaryDirectory() as folder:
        args.out = str(Path(folder) / "times.json")
        for i in range(args.rounds):
            for variant in VARIANTS[:: -1 if i % 2 else 1]:
                args.variant = variant
                os.environ.pop("COMITY_LANES", None)
                if variant == "no lanes":
                    os.environ["COMITY_LANES"] = "1"
                elif args.lanes:
                    os.environ["COMITY_LANES"] = str(args.lanes)
                turns.start(rank_main, args)
                found = json.loads(Path(args.out).read_text())
                for name, took in found["times"].items():
                    seen.setdefault(name, {}).setdefault(variant, []).append(took)
                lanes = max(lanes, found["lanes"]) if variant == "lanes" else lanes
                if variant == "no lanes" and found["lanes"]:
                    raise SystemExit("COMITY_LANES=1 made threads")
                losses.add(found["loss"])
                version = found["torch"]
    if len(losses) != 1:
        raise SystemExit(f"the variants do not learn alike: {losses}")
    if not lanes:
        print("The first variant had no lanes: a rank has too few cores for them.")
    threads = f"{args.threads} threads a rank, {lanes} lane threads a rank"
    print(f"{args.ranks} ranks, torch {version}, {cores} cores, {threads}, {args.rounds} rounds")
    print_table(seen)


def print_table(seen: dict[str, dict[str, list[float]]]) -> None:
    print("medians in ms, with their range\n")
    print("| | " + " | ".join(VARIANTS) + " | gloo / lanes | no lanes / lanes |")
    print("|---" + "|---:" * (len(VARIANTS) + 2) + "|")
    for name, times in seen.items():
        middle = {v: statistics.median(times[v]) for v in VARIANTS}
        cells = [
            f"{1e3 * middle[v]:.2f} ({1e3 * min(times[v]):.2f} - {1e3 * max(times[v]):.2f})" for v in VARIANTS
        ]
        ratios = [f"{middle[v] / middle['lanes']:.2f}" for v in ("gloo", "no lanes")]
        print(f"| {name} | " + " | ".join(cells + ratios) + " |")


def rank_main(rank: int, args: argparse.Namespace, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if args.variant == "gloo":
        dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    else:
        import comity  # noqa: F401  (makes the backend known)

        dist.init_process_group("comity", rank=rank, world_size=args.ranks)
    times = {}
    for size in (MIB // 4, MIB) if args.quick else (MIB, 32 * MIB, 64 * MIB):
        x = torch.ones(size // 4)

        def call(x: torch.Tensor = x) -> None:
            dist.all_reduce(x)

        def check(x: torch.Tensor = x) -> None:
            if not bool((x == args.ranks).all()):
                raise SystemExit("a wrong sum")
            x.fill_(1)

        name = f"all_reduce {size / MIB:g} MiB"
        times[name] = measure(call, check, 5 if args.quick else min(200, 2000 * MIB // size))
    loss = 0.0
    for name, make, x in models(args.quick):
        model = torch.nn.parallel.DistributedDataParallel(make())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        lost: list[float] = []

        def step(
            model: nn.Module = model,
            optimizer: torch.optim.Optimizer = optimizer,
            x: torch.Tensor = x,
            lost: list[float] = lost,
        ) -> None:
            optimizer.zero_grad()
            out = model(x).square().mean()
            out.backward()
            optimizer.step()
            lost.append(out.item())

        times[f"step, {name}"] = measure(step, lambda: None, 3 if args.quick else 30)
        loss += lost[-1]
    # Those that carry lanes, while the group stands.
    tasks = Path("/proc/self/task").glob("*/comm")
    lanes = sum(t.read_text().strip() == "comity-lane" for t in tasks)
    if rank == 0:
        found = {"times": times, "lanes": lanes, "loss": float(f"{loss:.4g}"), "torch": torch.__version__}
        Path(args.out).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure(call: Callable[[], None], check: Callable[[], None], times: int) -> float:
    """Median of what the slowest rank takes, in seconds; the first three calls warm up."""
    import torch
    import torch.distributed as dist

    took = torch.zeros(times)
    for i in range(-3, times):
        dist.barrier()
        begun = time.perf_counter()
        call()
        if i >= 0:
            took[i] = time.perf_counter() - begun
        check()
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return statistics.median(took.tolist())


def models(quick: bool) -> list[tuple[str, Callable[[], nn.Module], torch.Tensor]]:
    """Name, model and input: a network that is all gradients, and one that is mostly arithmetic."""
    import torch
    from torch import nn

    width, layers = (64, 1) if quick else (512, 6)

    def transformer() -> nn.Module:
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    wide = lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))  # noqa: E731
    mlp = wide if quick else turns.mlp
    tokens = (2, 16, width) if quick else (8, 128, width)
    return [("MLP", mlp, torch.randn(16, 784)), ("transformer", transformer, torch.randn(tokens))]


if __name__ == "__main__":
    main()
