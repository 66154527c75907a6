"""all_reduce of f32 through torch on one host, by turns: Comity, DeepSpeed's operation over shared memory, gloo.

    pip download --no-deps --no-binary :all: deepspeed==0.17.5 && tar xf deepspeed-0.17.5.tar.gz
    python bench/torch_deepspeed.py deepspeed-0.17.5                          # 2 ranks of one thread
    python bench/torch_deepspeed.py deepspeed-0.17.5 --ranks 4 --threads 8    # OMP_NUM_THREADS of each

Needs torch, the package comity, g++ and a processor with AVX-512, for which DeepSpeed has this operation. Of DeepSpeed two files are
compiled, with its own flags. Prints the median of seven rounds, in microseconds, with the least and the most; each result is checked once.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20, 64 << 20]
ROUNDS = 7


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="DeepSpeed's sources; within a rank, the operation")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if "COMITY_RANK" in os.environ:
        measure(args.source)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        operation = build(args.source, Path(folder))
        launch = [sys.executable, "-m", "comity", "launch", "-n", str(args.ranks), "--timeout", "600"]
        variables = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        return subprocess.call([*launch, "--", sys.executable, __file__, str(operation)], env=variables)


def build(source: Path, folder: Path) -> Path:
    """Compile the operation as torch loads it."""
    import torch
    from torch.utils import cpp_extension

    places = [
        *cpp_extension.include_paths(),
        f"{sys.base_prefix}/include/python{sys.version_info[0]}.{sys.version_info[1]}",
    ]
    libraries = Path(torch.__file__).parent / "lib"
    built = folder / "ds_shm.so"
    command = [
        "g++",
        "-O2",
        "-fopenmp",
        "-march=native",
        "-std=c++20",
        "-fPIC",
        "-shared",
        "-DTORCH_EXTENSION_NAME=ds_shm",
    ]
    command += [f"-I{place}" for place in [*places, source / "csrc/cpu/includes"]]
    command += [str(source / "csrc/cpu/comm" / name) for name in ("shm_interface.cpp", "shm.cpp")]
    command += ["-o", str(built), f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    command += ["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"]
    subprocess.run(command, check=True)
    return built


def measure(operation: Path) -> None:
    """Every rank: the three by turns, of each size."""
    import torch
    import torch.distributed as dist

    import comity.torch  # noqa: F401  the backend "comity"

    dist.init_process_group("comity")
    rank = dist.get_rank()
    size = dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    # Of the ranks on this host: without it the operation does nothing.
    os.environ["LOCAL_SIZE"] = str(size)
    spec = importlib.util.spec_from_file_location("ds_shm", operation)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.initialize(size, rank)
    calls: dict[str, Callable[[torch.Tensor], object]] = {
        "comity": dist.all_reduce,
        "deepspeed": torch.ops.deepspeed.inference_all_reduce_,
        "gloo": lambda x: dist.all_reduce(x, group=gloo),
    }
    for length in SIZES:
        count = max(3, min(200, SIZES[-1] // length))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for name, call in calls.items():
            x = torch.full((length // 4,), float(rank + 1))
            call(x)
            assert bool((x == size * (size + 1) / 2).all()), f"{name}: a wrong sum"
        for _ in range(ROUNDS):
            for name, call in calls.items():
                x = torch.zeros(length // 4)
                # Threads of OpenMP that the call before, or this line, has woken look for work for a while, on all cores.
                time.sleep(0.02)
                call(x)
                start = time.perf_counter()
                for _ in range(count):
                    call(x)
                times[name].append((time.perf_counter() - start) / count * 1e6)
        if rank == 0:
            cells = (
                f"{name} {statistics.median(t):.1f} ({min(t):.1f}, {max(t):.1f})" for name, t in times.items()
            )
            print(f"{length >> 10} KiB: {', '.join(cells)}", flush=True)
    calls.clear()
    dist.destroy_process_group(gloo)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
