"""A library that is driven from Python, timed as `comity bench --raw` times Comity, for `cargo xtask bench`.

    python peers.py LIBRARY OPS SIZES BUDGET DTYPE TAG

LIBRARY is numpy or torch (Comity through them), gloo or mlx. Calls are made back to back, without a barrier between them. A sample is a
call, or the mean of a batch where more fit into BUDGET seconds than are kept. Each rank writes a line for each operation and size
to TAG.rN.jsonl.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

MOST_SAMPLES, LEAST_STEPS, WARM = 20_000, 5, 20
#: Times the budget.
OVERRUN = 4
#: Calls in a step: two roots in turn, there and back.
CALLS = {"broadcast": 2, "pingpong": 2}


class Numpy:
    """Comity with NumPy's arrays."""

    def __init__(self, dtype: str):
        import numpy as np

        import comity

        assert dtype == "f32"
        self.np, self.group = np, comity.init()
        self.rank, self.size = self.group.rank, self.group.size

    def full(self, n: int, value: float) -> Any:
        return self.np.full(n, value, self.np.float32)

    def equal(self, x: Any, value: float) -> bool:
        return bool((x == value).all())

    def all_reduce(self, x: Any) -> Any:
        return self.group.all_reduce(x, out=x)

    def all_gather(self, part: Any, out: Any) -> Any:
        return self.group.all_gather(part, out=out)

    def reduce_scatter(self, x: Any, out: Any) -> Any:
        return self.group.reduce_scatter(x, out=out)

    def all_to_all(self, x: Any, out: Any) -> Any:
        return self.group.all_to_all(x, out=out)

    def call(self, op: str, give: Any, out: Any) -> Callable[[], Any] | None:
        group = self.group
        return {
            "all_reduce": partial(group.all_reduce, out, out=out),
            "all_gather": partial(group.all_gather, give, out=out),
            "reduce_scatter": partial(group.reduce_scatter, give, out=out),
            "all_to_all": partial(group.all_to_all, give, out=out),
            "barrier": group.barrier,
        }.get(op)

    def broadcast(self, x: Any, root: int) -> Any:
        return self.group.broadcast(x, root, out=x)

    def send(self, x: Any, to: int) -> None:
        self.group.send(x, to)

    def recv(self, out: Any, source: int) -> Any:
        return self.group.recv_like(out, source, out=out)

    def barrier(self) -> None:
        self.group.barrier()

    def agree(self, value: float) -> float:
        return float(self.group.broadcast(self.full(1, value), 0)[0])

    def close(self) -> None:
        self.group.barrier()


class Torch:
    """torch.distributed with a backend."""

    def __init__(self, dtype: str, backend: str):
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group(backend)
        self.torch, self.dist = torch, dist
        self.dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def full(self, n: int, value: float) -> Any:
        return self.torch.full((n,), value, dtype=self.dtype)

    def equal(self, x: Any, value: float) -> bool:
        return bool((x == value).all())

    def all_reduce(self, x: Any) -> Any:
        self.dist.all_reduce(x)
        return x

    def all_gather(self, part: Any, out: Any) -> Any:
        self.dist.all_gather_into_tensor(out, part)
        return out

    def reduce_scatter(self, x: Any, out: Any) -> Any:
        self.dist.reduce_scatter_tensor(out, x)
        return out

    def all_to_all(self, x: Any, out: Any) -> Any:
        self.dist.all_to_all_single(out, x)
        return out

    def call(self, op: str, give: Any, out: Any) -> Callable[[], Any] | None:
        dist = self.dist
        return {
            "all_reduce": partial(dist.all_reduce, out),
            "all_gather": partial(dist.all_gather_into_tensor, out, give),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, out, give),
            "all_to_all": partial(dist.all_to_all_single, out, give),
            "barrier": dist.barrier,
        }.get(op)

    def broadcast(self, x: Any, root: int) -> Any:
        self.dist.broadcast(x, root)
        return x

    def send(self, x: Any, to: int) -> None:
        self.dist.send(x, to)

    def recv(self, out: Any, source: int) -> Any:
        self.dist.recv(out, source)
        return out

    def barrier(self) -> None:
        self.dist.barrier()

    def agree(self, value: float) -> float:
        x = self.torch.tensor([value], dtype=self.torch.float64)
        self.dist.broadcast(x, 0)
        return float(x[0])

    def close(self) -> None:
        self.dist.barrier()
        self.dist.destroy_process_group()


class Mlx:
    """The ring of MLX, on the CPU. Its arrays are new ones after each call."""

    def __init__(self, dtype: str):
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        self.mx, self.group = mx, mx.distributed.init(strict=True, backend="ring")
        self.dtype = mx.bfloat16 if dtype == "bf16" else mx.float32
        self.rank, self.size = self.group.rank(), self.group.size()

    def full(self, n: int, value: float) -> Any:
        x = self.mx.full((n,), value, dtype=self.dtype)
        self.mx.eval(x)
        return x

    def equal(self, x: Any, value: float) -> bool:
        return bool((x == value).all().item())

    def all_reduce(self, x: Any) -> Any:
        x = self.mx.distributed.all_sum(x)
        self.mx.eval(x)
        return x

    def all_gather(self, part: Any, out: Any) -> Any:
        out = self.mx.distributed.all_gather(part)
        self.mx.eval(out)
        return out

    def call(self, op: str, give: Any, out: Any) -> Callable[[], Any] | None:
        return None

    def send(self, x: Any, to: int) -> None:
        self.mx.eval(self.mx.distributed.send(x, to))

    def recv(self, out: Any, source: int) -> Any:
        out = self.mx.distributed.recv_like(out, source)
        self.mx.eval(out)
        return out

    def barrier(self) -> None:
        self.all_reduce(self.full(1, 0.0))

    def agree(self, value: float) -> float:
        x = self.mx.array([value if self.rank == 0 else 0.0], dtype=self.mx.float32)
        return float(self.all_reduce(x).item())

    def close(self) -> None:
        self.barrier()


def library(name: str, dtype: str) -> Any:
    if name == "numpy":
        return Numpy(dtype)
    if name == "mlx":
        return Mlx(dtype)
    if name == "torch":
        # Before torch 2.14 the backend is there once this is imported.
        importlib.import_module("comity.torch")

    return Torch(dtype, {"torch": "comity", "gloo": "gloo"}[name])


def prepare(p: Any, op: str, count: int) -> tuple[Callable[[], bool], Callable[[], Callable[[], Any]]]:
    """What tells whether a call gives what it has to, and what gives that which is then timed: the library's own function where it can
    be called as it is, for a frame of Python takes as long as half a short call."""
    part = count // p.size
    given = {
        "all_gather": part,
        "reduce_scatter": part * p.size,
        "all_to_all": part * p.size,
        "pingpong": count,
    }
    got = {"all_gather": part * p.size, "reduce_scatter": part, "all_to_all": part * p.size, "barrier": 0}
    give = p.full(given.get(op, 0), 0.0)
    box = [p.full(got.get(op, count), 0.0)]

    def step() -> None:
        out = box[0]
        if op == "all_reduce":
            out = p.all_reduce(out)
        elif op in {"all_gather", "reduce_scatter", "all_to_all"}:
            out = getattr(p, op)(give, out)
        elif op == "broadcast":
            out = p.broadcast(p.broadcast(out, 0), 1 % p.size)
        elif op == "barrier":
            p.barrier()
        elif p.rank == 0:
            p.send(give, 1)
            out = p.recv(out, 1)
        elif p.rank == 1:
            out = p.recv(out, 0)
            p.send(give, 0)
        box[0] = out

    def check() -> bool:
        nonlocal give
        mine = p.rank + 1.0
        give, box[0] = p.full(given.get(op, 0), mine), p.full(got.get(op, count), mine)
        step()
        out, total = box[0], p.size * (p.size + 1) / 2
        if op in {"all_reduce", "reduce_scatter"}:
            ok = p.equal(out, total)
        elif op in {"all_gather", "all_to_all"}:
            ok = all(p.equal(out[r * part : (r + 1) * part], r + 1.0) for r in range(p.size))
        elif op == "broadcast":
            ok = p.equal(out, 1.0)
        else:
            ok = op == "barrier" or p.rank > 1 or p.equal(out, 2.0 - p.rank)
        give, box[0] = p.full(given.get(op, 0), 0.0), p.full(got.get(op, count), 0.0)
        return ok

    def timed() -> Callable[[], Any]:
        return p.call(op, give, box[0]) or step

    return check, timed


def busy() -> float:
    """Seconds that all cores have worked, for whomever."""
    with open("/proc/stat") as stat:
        fields = [int(x) for x in stat.readline().split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:7])) / os.sysconf("SC_CLK_TCK")


def peak_kib() -> int:
    """The most memory that this process has had."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def estimate(p: Any, step: Callable[[], Any], budget: float, least: int, most: int) -> int:
    """How often: as rank 0 finds by the middle one of three calls."""
    at = [time.perf_counter()]
    for _ in range(3):
        step()
        at.append(time.perf_counter())
    call = sorted(b - a for a, b in itertools.pairwise(at))[1]
    return int(min(max(p.agree(budget / call), least), most))


def measure(p: Any, op: str, size: int, count: int, budget: float) -> dict[str, Any]:
    check, timed = prepare(p, op, count)
    ok, step = check(), timed()
    for _ in range(estimate(p, step, budget / 2, 1, WARM)):
        step()
    steps = estimate(p, step, budget, LEAST_STEPS, 10**9)
    batch = -(-steps // MOST_SAMPLES)
    samples = steps // batch
    times, each = [], CALLS.get(op, 1) * batch
    now = time.perf_counter_ns
    worked, before = busy(), resource.getrusage(resource.RUSAGE_SELF)
    begun = last = now()
    for i in range(1, samples + 1):
        for _ in range(batch):
            step()
        end = now()
        times.append((end - last) // each)
        last = end
        # Some calls take a hundred times as long as others: rank 0 ends what takes far too long.
        if i >= LEAST_STEPS and i % max(samples // 8, 1) == 0:
            if p.agree(float(end - begun > OVERRUN * budget * 1e9)):
                break
            last = now()
    after, worked = resource.getrusage(resource.RUSAGE_SELF), busy() - worked
    return {
        "op": op,
        "bytes": size,
        "n": p.size,
        "ok": ok,
        "iters": len(times) * each,
        "batch": batch,
        "busy_s": round(worked, 2),
        "wall_ns": last - begun,
        "user_s": after.ru_utime - before.ru_utime,
        "sys_s": after.ru_stime - before.ru_stime,
        "peak_kib": peak_kib(),
        "times_ns": times,
    }


def main() -> None:
    name, ops, sizes, budget, dtype, tag = sys.argv[1:]
    p = library(name, dtype)
    with open(f"{tag}.r{p.rank}.jsonl", "w") as file:
        for op in ops.split(","):
            for size in map(int, sizes.split(",")):
                count = size // (2 if dtype == "bf16" else 4)
                file.write(json.dumps(measure(p, op, size, count, float(budget))) + "\n")
    p.close()


if __name__ == "__main__":
    main()
