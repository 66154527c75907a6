"""The backend comity and torch's nccl with CUDA tensors, in the same processes, taking turns: all_reduce, and steps of
DistributedDataParallel.

    python bench/torch_cuda.py [--ranks 2] [--rounds 15]

One process per GPU. Prints medians over rounds of the slowest rank. "one": each call is waited for on the processor; "twenty": twenty calls
are put on the stream, then waited for. "handing": a process group in Python that hands each call to nccl's and does nothing else, which is
the least that one in Python takes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import turns

SIZES = (8, 1 << 20, 16 << 20, 256 << 20)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    turns.start(rank_main, args)


def rank_main(rank: int, args: argparse.Namespace, port: int) -> None:
    import torch
    import torch.distributed as dist

    import comity

    torch.cuda.set_device(rank)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("comity", rank=rank, world_size=args.ranks)
    dist.Backend.register_backend("handing", handing, devices=["cuda"])
    groups = {name: dist.new_group(backend=name) for name in ("nccl", "handing")}
    groups = {"comity": dist.group.WORLD, **groups}

    def slowest(took: float) -> float:
        t = torch.tensor([took])
        dist.all_reduce(t, dist.ReduceOp.MAX)
        return t.item()

    def alternate(
        what: Callable[[str], float], names: Iterable[str] = groups, times: int = 1
    ) -> dict[str, list[float]]:
        rounds = times * args.rounds
        return turns.alternate(lambda b: slowest(what(b)), names, rounds, torch.cuda.synchronize)

    def report(title: str, times: dict[str, list[float]], scale: float) -> None:
        if rank == 0:
            print(turns.line(title, times, scale), flush=True)

    if rank == 0:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        print(
            f"torch {torch.__version__}, NCCL {version}, comity {comity.__version__}, {args.ranks} x {torch.cuda.get_device_name(0)}"
        )
    for size in SIZES:
        for title, what in ways(groups, size):
            report(f"all_reduce {size} B, {title}, us", alternate(what, ("comity", "nccl")), 1e6)
    train(groups, alternate, report)
    dist.destroy_process_group()


def handing(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """A process group that hands calls to nccl's."""
    import torch.distributed as dist

    class Handing(dist.ProcessGroup):
        def __init__(self) -> None:
            super().__init__(rank, size)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._inner = dist.ProcessGroupNCCL(dist.PrefixStore("handing", store), rank, size, options)

        def allreduce(self, tensors: Any, opts: Any) -> Any:
            return self._inner.allreduce(tensors, opts)

        def broadcast(self, tensors: Any, opts: Any) -> Any:
            return self._inner.broadcast(tensors, opts)

        def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
            return self._inner.allgather(outputs, inputs, opts)

        def getBackendName(self) -> str:
            return "handing"

        supports_splitting = False

    return Handing()


def ways(groups: dict, size: int) -> list[tuple[str, Callable[[str], float]]]:
    """Ways to make calls of so many bytes: each takes a backend, and gives the seconds of a call."""
    import torch
    import torch.distributed as dist

    t = torch.zeros(size // 4, device="cuda")
    n = 200 if size < 1 << 24 else 20

    def one(backend: str) -> float:
        group, took = groups[backend], []
        for _ in range(n):
            begun = time.perf_counter()
            dist.all_reduce(t, group=group)
            torch.cuda.synchronize()
            took.append(time.perf_counter() - begun)
        return statistics.median(took)

    def twenty(backend: str) -> float:
        group, took = groups[backend], []
        for _ in range(max(n // 20, 3)):
            begun = time.perf_counter()
            for _ in range(20):
                dist.all_reduce(t, group=group)
            torch.cuda.synchronize()
            took.append((time.perf_counter() - begun) / 20)
        return statistics.median(took)

    def background(backend: str) -> float:
        group, took = groups[backend], []
        for _ in range(max(n // 20, 3)):
            begun = time.perf_counter()
            works = [dist.all_reduce(t, group=group, async_op=True) for _ in range(20)]
            for w in works:
                w.wait()
            torch.cuda.synchronize()
            took.append((time.perf_counter() - begun) / 20)
        return statistics.median(took)

    return [("one", one), ("twenty", twenty), ("twenty, async_op", background)]


def train(groups: dict, alternate: Callable, report: Callable) -> None:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    def transformer() -> nn.Module:
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)

    # Steps of the small model differ by more than the groups do: many short turns.
    for name, make, x, steps, times in (
        ("MLP", turns.mlp, torch.randn(256, 784, device="cuda"), 12, 10),
        ("transformer", transformer, torch.randn(8, 256, 1024, device="cuda"), 5, 1),
    ):
        torch.manual_seed(0)
        model = make().cuda()
        count = sum(p.numel() for p in model.parameters())
        models = {}
        for b, g in groups.items():
            torch.manual_seed(0)
            models[b] = DDP(make().cuda(), process_group=g)
        del model
        grads = {}
        for b, m in models.items():
            m(x).square().mean().backward()
            grads[b] = [p.grad.clone() for p in m.parameters()]
        equal = all(torch.equal(a, b) for g in grads.values() for a, b in zip(g, grads["nccl"], strict=True))

        def step(
            backend: str,
            models: dict = models,
            x: torch.Tensor = x,
            steps: int = steps,
        ) -> float:
            took = []
            for _ in range(steps):
                models[backend].zero_grad()
                begun = time.perf_counter()
                models[backend](x).square().mean().backward()
                torch.cuda.synchronize()
                took.append(time.perf_counter() - begun)
            return statistics.median(took)

        report(f"DDP step, {name} of {count / 1e6:.1f} M parameters, ms", alternate(step, times=times), 1e3)
        if torch.distributed.get_rank() == 0:
            print(f"  gradients of the first step equal, bit for bit: {equal}", flush=True)


if __name__ == "__main__":
    main()
