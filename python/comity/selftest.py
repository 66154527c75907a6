"""The rows of ``comity selftest`` that need Python: arrays of each library over Comity, beside what they should be.

``python -m comity.selftest`` prints what this interpreter has. ``comity launch -n 2 -- python -m comity.selftest numpy`` runs a part.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from array import array
from collections.abc import Callable
from typing import Any

import comity

COUNTS = (1, 1000, 100_003)


def found() -> dict[str, Any]:
    """Versions of the libraries that are installed, and the devices that torch sees."""
    all_of_it: dict[str, Any] = {"python": platform.python_version(), "comity": comity.__version__, "cuda": 0}
    for name in ("numpy", "torch", "mlx"):
        there = importlib.util.find_spec(name) is not None
        all_of_it[name] = importlib.metadata.version(name) if there else None
    if all_of_it["torch"]:
        import torch

        all_of_it["mps"] = torch.backends.mps.is_available()
        all_of_it["cuda"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return all_of_it


def same(what: str, got: Any, expected: Any) -> None:
    """Raise an error that names the call whose result is another."""
    if got != expected:
        raise SystemExit(f"comity selftest: {what}: the result is wrong")


def arrays() -> int:
    """Calls on arrays of Python's own."""
    group = comity.init()
    everyone = range(group.size)
    for count in COUNTS:
        own = array("d", [group.rank + i % 7 for i in range(count)])
        total = array("d", [sum(r + i % 7 for r in everyone) for i in range(count)])
        same(f"all_reduce of {count} doubles", group.all_reduce(own).tobytes(), total.tobytes())
        last = array("d", [group.size - 1 + i % 7 for i in range(count)])
        same(f"broadcast of {count} doubles", group.broadcast(own, group.size - 1).tobytes(), last.tobytes())
    group.close()
    return group.size


def numpy() -> int:
    """Calls on NumPy's arrays of several types."""
    import numpy as np

    group = comity.init()
    rank, size = group.rank, group.size
    for dtype in ("uint8", "int32", "int64", "float16", "float32", "float64"):
        for count in COUNTS:
            of = [(np.arange(count) % 7 + r).astype(dtype) for r in range(size)]
            what = f"of {dtype}[{count}]"
            same(f"all_reduce {what}", group.all_reduce(of[rank]).tobytes(), sum(of[1:], of[0]).tobytes())
            same(f"all_reduce max {what}", group.all_reduce(of[rank], "max").tobytes(), of[-1].tobytes())
            same(f"broadcast {what}", group.broadcast(of[rank], size - 1).tobytes(), of[-1].tobytes())
            together = np.concatenate(of)
            same(f"all_gather {what}", group.all_gather(of[rank]).tobytes(), together.tobytes())
            part = group.reduce_scatter(together).tobytes()
            same(f"reduce_scatter {what}", part, (of[rank] * size).astype(dtype).tobytes())
            before = group.sendrecv(of[rank], (rank + 1) % size, (rank - 1) % size)
            same(f"sendrecv {what}", before.tobytes(), of[(rank - 1) % size].tobytes())
    group.close()
    return size


def torch(device: str) -> int:
    """Calls of torch.distributed on tensors of this device, and a step of DistributedDataParallel."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    place = torch.device(device)
    if device == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    dist.init_process_group("comity")
    rank, size = dist.get_rank(), dist.get_world_size()

    def values(r: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        return (torch.arange(count) % 7 + r).to(dtype)

    def equal(what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
        same(what, torch.equal(got.cpu(), expected), True)

    for dtype in (torch.int32, torch.float16, torch.float32):
        for count in COUNTS:
            of = [values(r, count, dtype) for r in range(size)]
            what = f"of {dtype}[{count}] on {device}"
            total = of[rank].to(place, copy=True)
            dist.all_reduce(total)
            equal(f"all_reduce {what}", total, torch.stack(of).sum(0).to(dtype))
            last = of[rank].to(place, copy=True)
            dist.broadcast(last, size - 1)
            equal(f"broadcast {what}", last, of[-1])
            everyone = torch.empty(size * count, dtype=dtype, device=place)
            dist.all_gather_into_tensor(everyone, of[rank].to(place))
            equal(f"all_gather {what}", everyone, torch.cat(of))
            part = torch.empty(count, dtype=dtype, device=place)
            dist.reduce_scatter_tensor(part, everyone)
            equal(f"reduce_scatter {what}", part, of[rank] * size)

    def gradient(r: int, model: torch.nn.Module) -> torch.Tensor:
        x = values(r, 64, torch.float32).reshape(8, 8).to(place)
        model(x).square().mean().backward()
        weight = next(iter(model.parameters())).grad
        assert weight is not None
        return weight.cpu()

    torch.manual_seed(0)
    state = torch.nn.Linear(8, 1).state_dict()

    def model() -> torch.nn.Linear:
        layer = torch.nn.Linear(8, 1)
        layer.load_state_dict(state)
        return layer.to(place)

    mean = torch.stack([gradient(r, model()) for r in range(size)]).mean(0)
    got = gradient(rank, DistributedDataParallel(model()))
    same(f"DistributedDataParallel on {device}", torch.allclose(got, mean, rtol=1e-4, atol=1e-5), True)
    dist.destroy_process_group()
    return size


def mlx() -> int:
    """Calls on MLX's arrays, and its average of gradients."""
    import mlx.core as mx

    from comity import mlx as dist

    group = dist.init()
    rank, size = group.rank(), group.size()
    for dtype in (mx.int32, mx.float16, mx.float32, mx.bfloat16):
        for count in COUNTS:
            of = [(mx.arange(count) % 7 + r).astype(dtype) for r in range(size)]
            what = f"of {dtype}[{count}]"
            total = sum(of[1:], of[0])
            same(f"all_sum {what}", mx.array_equal(dist.all_sum(of[rank]), total).item(), True)
            everyone = mx.concatenate(of)
            same(f"all_gather {what}", mx.array_equal(dist.all_gather(of[rank]), everyone).item(), True)
    average = dist.average_gradients({"w": mx.full((8,), float(rank))})["w"]
    same("average_gradients", mx.allclose(average, mx.full((8,), (size - 1) / 2)).item(), True)
    return size


PARTS: dict[str, Callable[[], int]] = {
    "array": arrays,
    "numpy": numpy,
    "torch": lambda: torch("cpu"),
    "torch-mps": lambda: torch("mps"),
    "torch-cuda": lambda: torch("cuda"),
    "mlx": mlx,
}


def main(words: list[str]) -> int:
    """Run a part as one rank, or print what is installed."""
    if not words:
        print(json.dumps(found()))
        return 0
    if words[0] not in PARTS:
        print(f"comity selftest: there is no part {words[0]}; one of {', '.join(PARTS)}", file=sys.stderr)
        return 2
    size = PARTS[words[0]]()
    print(f"{words[0]} on {size} ranks: all ok")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
