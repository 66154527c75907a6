"""The backend comity and gloo in the same processes, taking turns: latency, bandwidth, and steps of DistributedDataParallel.

    python bench/torch_backend.py [--ranks 2] [--rounds 7] [--only latency,bandwidth,ddp]

Needs torch and the package comity. Prints medians over rounds, and for training the CPU seconds of all ranks. COMITY_LINKS=tcp measures
over TCP instead of shared memory; gloo always uses TCP.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import turns


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="latency,bandwidth,ddp")
    args = parser.parse_args()
    turns.start(rank_main, args)


def rank_main(rank: int, args: argparse.Namespace, port: int) -> None:
    import torch
    import torch.distributed as dist

    import comity

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("comity", rank=rank, world_size=args.ranks)
    groups = {"comity": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}

    def say(line: str) -> None:
        if rank == 0:
            print(line, flush=True)

    def report(title: str, times: dict[str, list[float]], scale: float) -> None:
        say(turns.line(title, times, scale))

    links = os.environ.get("COMITY_LINKS", "shm,tcp")
    say(
        f"torch {torch.__version__}, comity {comity.__version__} (links {links}), {args.ranks} ranks, {args.rounds} rounds"
    )
    wanted = args.only.split(",")
    if "latency" in wanted:
        t = torch.zeros(2)

        def loop(backend: str) -> float:
            group, n = groups[backend], 300
            begun = time.perf_counter()
            for _ in range(n):
                dist.all_reduce(t, group=group)
            return (time.perf_counter() - begun) / n

        report("all_reduce 8 B, us", turns.alternate(loop, groups, args.rounds), 1e6)
    if "bandwidth" in wanted:
        for size in (1 << 20, 64 << 20):
            big = torch.ones(size // 4)

            cpu: dict[str, list[float]] = {b: [] for b in groups}

            def once(backend: str, big: torch.Tensor = big, cpu: dict = cpu) -> float:
                begun, used = time.perf_counter(), time.process_time()
                dist.all_reduce(big, group=groups[backend])
                took = time.perf_counter() - begun
                cpu[backend].append(time.process_time() - used)
                big.fill_(1)
                return took

            times = turns.alternate(once, groups, 3 * args.rounds)
            report(f"all_reduce {size >> 20} MiB, ms", times, 1e3)
            report(f"all_reduce {size >> 20} MiB, CPU ms of one rank", cpu, 1e3)
    if "ddp" in wanted:
        train(args, groups, report)
    dist.destroy_process_group()


def train(args: argparse.Namespace, groups: dict, report: Callable) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    def transformer() -> nn.Module:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    for name, make, x in (
        ("MLP", turns.mlp, torch.randn(16, 784)),
        ("transformer", transformer, torch.randn(2, 32, 256)),
    ):
        torch.manual_seed(0)
        model = make()
        count = sum(p.numel() for p in model.parameters())
        models = {b: DDP(make(), process_group=g) for b, g in groups.items()}
        cpu: dict[str, list[float]] = {b: [] for b in groups}

        def step(backend: str, models: dict = models, x: torch.Tensor = x, cpu: dict = cpu) -> float:
            begun, used = time.perf_counter(), time.process_time()
            models[backend](x).square().mean().backward()
            took = time.perf_counter() - begun
            both = torch.tensor([time.process_time() - used])
            models[backend].zero_grad()
            dist.all_reduce(both)
            cpu[backend].append(both.item())
            return took

        times = turns.alternate(step, groups, 3 * args.rounds)
        for values in cpu.values():
            del values[0]
        title = f"DDP step, {name} of {count / 1e6:.1f} M parameters"
        report(f"{title}, ms", times, 1e3)
        report(f"{title}, CPU ms of all ranks", cpu, 1e3)


if __name__ == "__main__":
    main()
