"""python eight_bytes.py EMPTY CALLS numpy|torch: crates/comity/examples/eight_bytes.rs through Python."""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import comity

# Calls before those that are counted: the interpreter adapts its code to the types that it meets.
FIRST = 100
# Seconds until the tracer comes; else there is none.
PATIENCE = 20


def marker() -> None:
    """A signal to this thread that is ignored where no tracer looks."""
    signal.raise_signal(signal.SIGURG)


def nothing() -> None:
    pass


def numpy_calls() -> tuple[int, int, Callable[[], object], Callable[[], bool]]:
    """Rank, size, the call, and whether its sum was right, which also fills the buffer anew."""
    import numpy as np

    group = comity.init()
    x = np.ones(2, np.float32)

    def right() -> bool:
        held = bool((x == group.size).all())
        x[:] = 1
        return held

    return group.rank, group.size, lambda: comity.all_reduce(x, out=x), right


def torch_calls() -> tuple[int, int, Callable[[], object], Callable[[], bool]]:
    import torch
    import torch.distributed as dist

    # Torch finds an installed package by itself; the step that counts only lays one out.
    import comity.torch

    comity.torch.register()
    torch.set_num_threads(1)
    dist.init_process_group("comity")
    x = torch.ones(2)

    def right() -> bool:
        held = bool((x == dist.get_world_size()).all())
        x.fill_(1)
        return held

    return dist.get_rank(), dist.get_world_size(), lambda: dist.all_reduce(x), right


def meet_tracer(rank: int) -> None:
    """Say which process this is; rank 0 waits for the tracer."""
    if (folder := os.environ.get("COUNTED_IN")) is None:
        return
    Path(folder, f"rank-{rank}").write_text(f"{os.getpid()}\n")
    until = time.monotonic() + PATIENCE
    while rank == 0 and not Path(folder, "go").exists() and time.monotonic() < until:
        time.sleep(0.002)


def main() -> None:
    empty, calls, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rank, size, call, right = numpy_calls() if what == "numpy" else torch_calls()
    meet_tracer(rank)
    # A collection in the midst of a call would be counted with it.
    gc.disable()
    for _ in range(FIRST):
        call()
        assert right()
    mark = marker if rank == 0 else nothing
    for _ in range(empty):
        mark()
        mark()
    for _ in range(calls):
        mark()
        call()
        mark()
        assert right()
    print(f"rank {rank} of {size}: {calls} calls")


main()
