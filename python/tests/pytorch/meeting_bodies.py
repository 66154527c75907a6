"""What ranks do in `test_meeting.py`: groups that are made again at one store, after others and after tries that failed."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import comity


def begin(store: dist.Store, rank: int, size: int, limit: float = 40) -> None:
    dist.init_process_group(
        "comity", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=limit)
    )


def works(size: int) -> None:
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t.tolist() == [float(size)] * 3


def fails(store: dist.Store, rank: int, size: int) -> str:
    """Return the words of a try to which not all come."""
    try:
        begin(store, rank, size, 0.3)
    except comity.JoinError as e:
        return str(e)
    raise AssertionError("it met somebody")


def forget() -> None:
    """As in a process that was started again: torch counts the groups that it tried to make, and names groups by that."""
    dist.distributed_c10d._world.group_count = 0


def again(rank: int, size: int, store: dist.Store) -> None:
    """Groups one after the other at one store. Between them each rank fails alone, another number of times."""
    for turn in range(3):
        if rank != 0:
            store.wait([f"tried/{turn}/{rank - 1}"])
        for _ in range((turn + rank) % 3):
            fails(store, rank, size)
            forget()
        store.set(f"tried/{turn}/{rank}", "")
        store.wait([f"tried/{turn}/{size - 1}"])
        begun = time.monotonic()
        begin(store, rank, size)
        assert time.monotonic() - begun < 30
        works(size)
        # Its keys are others each time.
        dist.monitored_barrier(timeout=timedelta(seconds=10))
        dist.destroy_process_group()


def late_again(rank: int, size: int, store: dist.Store) -> None:
    """A rank fails while rank 0 waits, and tries again at once, as the others do if they were told."""
    for late in range(1, size):
        if rank == late:
            interrupted(store, rank, size)
            forget()
            store.set(f"late/{late}", "")
        elif rank != 0:
            store.wait([f"late/{late}"])
        begun = time.monotonic()
        try:
            begin(store, rank, size)
        except comity.JoinError:
            # Rank 0 waited with it, or another rank came before rank 0 took its try back.
            assert rank != late
            forget()
            begin(store, rank, size)
        assert time.monotonic() - begun < 30
        works(size)
        dist.destroy_process_group()


def interrupted(store: dist.Store, rank: int, size: int) -> float:
    """Ctrl-C while the others are waited for; seconds that it took."""
    main, begun = threading.main_thread().ident, time.monotonic()
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    try:
        timer.start()
        begin(store, rank, size)
    except KeyboardInterrupt:
        return time.monotonic() - begun
    finally:
        timer.join()
    raise AssertionError("it met somebody")


def interrupt(rank: int, size: int, store: dist.Store) -> float:
    """Every rank is interrupted alone, one after the other, with one connection to the store, and all meet then."""
    if rank != 0:
        store.wait([f"interrupted/{rank - 1}"])
    took = interrupted(store, rank, size)
    store.set(f"interrupted/{rank}", "")
    begin(store, rank, size)
    works(size)
    dist.destroy_process_group()
    return took


# ---- what is left behind


def owned() -> dict[str, Counter]:
    """Count what this process has of the system: threads, descriptors, memory and files of ours, environment, signal handlers."""
    threads, files = [], []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            threads.append((task / "comm").read_text().strip())
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            files.append(os.readlink(fd).partition(":")[0])
    maps = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    names = [str(f) for place in ("/tmp", "/dev/shm") for f in Path(place).glob(f"*comity*{os.getpid()}*")]
    return {
        # Those that run callbacks stay for the next.
        "threads": Counter(t for t in threads if t.startswith("comity") and t != "comity-call"),
        "descriptors": Counter(files),
        "memory": Counter(m for m in maps if "comity" in m and not m.endswith(".so")),
        "files": Counter(names),
        "environment": Counter(os.environ.items()),
        "signals": Counter((s, signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)),
    }


@contextlib.contextmanager
def leaves_nothing(what: str) -> Iterator[None]:
    before = owned()
    yield
    gc.collect()
    until = time.monotonic() + 30
    # What was there before may have ended.
    while more := {k: v for k, now in owned().items() if (v := now - before[k])}:
        assert time.monotonic() < until, (what, more)
        time.sleep(0.02)


def left_behind(rank: int, size: int, store: dist.Store) -> None:
    """Threads, descriptors, files, memory, variables and signal handlers after a group that was left, and after tries that failed."""

    def whole(turn: str) -> None:
        begin(dist.PrefixStore(turn, store), rank, size)
        works(size)
        w = dist.all_reduce(torch.ones(2), async_op=True)
        w.get_future().then(lambda _: dist.all_reduce(torch.ones(2))).wait()
        dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % size),
                dist.P2POp(dist.irecv, torch.ones(2), (rank - 1) % size),
            ]
        )[-1].wait()
        half = dist.new_group([0])
        if rank == 0:
            dist.all_reduce(torch.ones(1), group=half)
        dist.barrier()
        dist.destroy_process_group()

    def failed(turn: str) -> None:
        fails(dist.PrefixStore(f"{turn}/{rank}", store), rank, size)

    def stopped(turn: str) -> None:
        interrupted(dist.PrefixStore(f"{turn}/{rank}", store), rank, size)

    # What is made once for the process is there after the first.
    whole("first")
    failed("first failed")
    for ends in (whole, failed, stopped):
        with leaves_nothing(ends.__name__):
            ends(ends.__name__)
        # All are done before any begins the next, which opens connections to the others.
        forget()
        store.set(f"{ends.__name__}/{rank}", "")
        store.wait([f"{ends.__name__}/{r}" for r in range(size)])
