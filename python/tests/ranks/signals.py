"""Signals, forks and other threads while calls wait."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import comity

# What is promised. Of each kind of wait one of a few must keep it, because the machine may be busy.
PROMISED = 0.2
TRIES = 8
# What each of them must keep, whatever else the machine does: half of the limit of a call.
BOUND = 30
# What tells a process its place in a job, beside Comity's own variables.
PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def until_called(after: float) -> None:
    """Return when the main thread sleeps in a call, however busy the machine is, and `after` seconds more."""
    main, looks = threading.main_thread(), 0
    stat = Path(f"/proc/self/task/{main.native_id}/stat")
    while looks < 5:
        time.sleep(0.01)
        at = Path(sys._current_frames()[main.ident].f_code.co_filename).name
        # One that waits for a processor on its way into the call does not sleep.
        asleep = not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "S"
        looks = looks + 1 if asleep and at in ("_calls.py", "_group.py", "_request.py") else 0
    time.sleep(after)


def interrupted(call: Callable[[], object], after: float = 0.3) -> float:
    """Seconds from a SIGINT to the end of `call`, which must end by KeyboardInterrupt."""
    sent = []

    def send() -> None:
        until_called(after)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    ended = time.monotonic()
    sender.join()
    return ended - sent[0]


def keeps_the_promise(g: comity.Group, once: Callable[[], float]) -> None:
    """Rank 0's `once` gives the seconds that an interruption took; all ranks call it until one was as quick as promised."""
    took = []
    for _ in range(TRIES):
        took.append(g.broadcast(once(), 0))
        assert took[-1] < BOUND, took
        if took[-1] < PROMISED:
            return
    raise AssertionError(took)


def check_ctrl_c_ends_a_call_and_its_group(g: comity.Group) -> None:
    if g.size == 1:
        return

    def once(behind: bool) -> float:
        took = 0.0
        other = g.split(0)
        assert other is not None
        # All have left the split before it fails.
        g.barrier()
        if g.rank == 0:
            if behind:
                # Behind work of the same group, which waits for the other ranks as well.
                other.all_sum(np.ones(3), async_=True)
            took = interrupted(other.barrier)
        g.barrier()
        # What rank 0 had sent may still be met; then there is nothing more.
        with contextlib.suppress(comity.AbortedError):
            other.all_sum(np.ones(3)) if behind else other.barrier()
        with pytest.raises(comity.AbortedError, match=r"interrupted by a signal \(KeyboardInterrupt\)") as e:
            other.barrier()
        assert e.value.rank == 0
        g.barrier()
        return took

    keeps_the_promise(g, lambda: once(behind=False))
    keeps_the_promise(g, lambda: once(behind=True))
    assert g.all_sum(1) == g.size, "other groups go on"


def check_ctrl_c_ends_a_wait_and_leaves_the_call(g: comity.Group) -> None:
    if g.size == 1:
        return

    def once() -> float:
        other = g.split(0)
        assert other is not None
        if g.rank:
            g.barrier()
            other.all_sum(np.ones(3))
            return 0.0
        request = other.all_sum(np.ones(3), async_=True)
        took = interrupted(request.wait)
        assert not request.done()
        g.barrier()
        assert request.wait()[0] == g.size
        return took

    keeps_the_promise(g, once)


def check_ctrl_c_ends_a_split(g: comity.Group) -> None:
    if g.size == 1:
        return
    other = g.split(0)
    assert other is not None
    g.barrier()
    if g.rank == 0:
        assert interrupted(lambda: other.split(0)) < BOUND
    g.barrier()
    with contextlib.suppress(comity.Error):
        other.split(0)
    with pytest.raises(
        comity.Error, match=r"KeyboardInterrupt|could not split|to come to the group|ranks disagree"
    ):
        other.barrier()
    g.barrier()


def while_a_call_waits(g: comity.Group, act: Callable[[], None]) -> None:
    """Rank 0's `act`, on another thread, while its main thread waits in a call: the other ranks come to it only after `act` has ended."""
    ended = g.split(0)
    assert ended is not None
    if g.rank:
        ended.barrier()
        g.barrier()
        return

    def work() -> None:
        until_called(0.1)
        act()
        ended.barrier()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    g.barrier()
    thread.join()


def check_other_handlers_run_and_the_call_goes_on(g: comity.Group) -> None:
    if g.size == 1:
        return
    seen = []

    def act() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        # If the handler does not run, the call ends at its limit, and says so.
        while not seen:
            time.sleep(0.01)

    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
    try:
        while_a_call_waits(g, act)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) == (g.rank == 0)
    g.barrier()


def check_other_threads_run_while_a_call_waits(g: comity.Group) -> None:
    if g.size == 1:
        return
    counted = [0]

    def act() -> None:
        while counted[0] < 100_000:
            counted[0] += 1

    while_a_call_waits(g, act)
    assert counted[0] == (100_000 if g.rank == 0 else 0)


def check_a_forked_child_is_refused(g: comity.Group) -> None:
    half = g.split(0)
    assert half is not None
    child = os.fork()
    if child == 0:
        code = 3
        try:
            for call in (lambda: half.all_sum(1), g.barrier, lambda: g.split(0), g.close, g.stats):
                with pytest.raises(comity.ForkedError, match="was forked from it"):
                    call()
            with pytest.raises(comity.ForkedError):
                g.all_sum(1, async_=True)
            # Nor does its end say goodbye in the parent's name.
            del half
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert half.all_sum(1) == g.size
    assert g.all_sum(1) == g.size


def tries_to_join() -> None:
    """What a worker does that does not know of the group."""
    for call in (comity.init, lambda: comity.all_reduce(1.0), lambda: comity.init(timeout=5, host="other")):
        with pytest.raises(comity.ForkedError, match="nor join in its parent's place"):
            call()


def check_a_forked_worker_does_not_join(g: comity.Group) -> None:
    if g.size == 1:
        return
    # As a DataLoader starts its workers.
    worker = multiprocessing.get_context("fork").Process(target=tries_to_join)
    worker.start()
    worker.join(30)
    assert worker.exitcode == 0
    # A program that is started anew is no copy of this process. It has no place of its own, unless it is told one.
    alone = [sys.executable, "-c", "import comity; print(comity.init(strict=False).size)"]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("COMITY_", "MLX_")) and k not in PLACE}
    assert subprocess.run(alone, env=env, capture_output=True, timeout=60, check=True).stdout == b"1\n"
    assert g.all_sum(1) == g.size
