"""Signals, forks and other threads while calls wait."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import comity

# What is promised, and what is asked: the best of a few, because the machine may be busy.
PROMISED = 0.2


def interrupted(call: Callable[[], object], after: float = 0.3) -> float:
    """Seconds from a SIGINT to the end of `call`, which must end by KeyboardInterrupt."""
    sent = []
    me = threading.main_thread().ident

    def send() -> None:
        # Not before the call is made, however busy the machine is.
        while Path(sys._current_frames()[me].f_code.co_filename).name not in ("_group.py", "_request.py"):
            time.sleep(0.01)
        time.sleep(after)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    ended = time.monotonic()
    sender.join()
    return ended - sent[0]


def check_ctrl_c_ends_a_call_and_its_group(g: comity.Group) -> None:
    if g.size == 1:
        return
    took = []
    for kind in range(4):
        other = g.split(0)
        assert other is not None
        if g.rank == 0:
            if kind % 2:
                # Behind work of the same group, which waits for the other ranks as well.
                other.all_sum(np.ones(3), async_=True)
            took.append(interrupted(other.barrier))
        g.barrier()
        # What rank 0 had sent may still be met; then there is nothing more.
        with contextlib.suppress(comity.Aborted):
            other.all_sum(np.ones(3)) if kind % 2 else other.barrier()
        with pytest.raises(comity.Aborted, match=r"interrupted by a signal \(KeyboardInterrupt\)") as e:
            other.barrier()
        assert e.value.rank == 0
        g.barrier()
    assert not took or min(took) < PROMISED, took
    assert g.all_sum(1) == g.size, "other groups go on"


def check_ctrl_c_ends_a_wait_and_leaves_the_call(g: comity.Group) -> None:
    if g.size == 1:
        return
    took = []
    for _ in range(3):
        other = g.split(0)
        assert other is not None
        if g.rank == 0:
            request = other.all_sum(np.ones(3), async_=True)
            took.append(interrupted(request.wait))
            assert not request.done()
            g.barrier()
            assert request.wait()[0] == g.size
        else:
            g.barrier()
            other.all_sum(np.ones(3))
    assert not took or min(took) < PROMISED, took


def check_ctrl_c_ends_a_split(g: comity.Group) -> None:
    if g.size == 1:
        return
    other = g.split(0)
    assert other is not None
    if g.rank == 0:
        assert interrupted(lambda: other.split(0)) < 2
    g.barrier()
    with contextlib.suppress(comity.Error):
        other.split(0)
    with pytest.raises(comity.Error, match=r"KeyboardInterrupt|could not split|to come to the group"):
        other.barrier()
    g.barrier()


def check_other_handlers_run_and_the_call_goes_on(g: comity.Group) -> None:
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
    try:
        if g.rank == 0:
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
            # Keeps this call waiting until the handler has run; on one rank there is nothing to wait for.
            if g.size == 1:
                time.sleep(0.3)
            g.barrier()
            assert seen
        else:
            time.sleep(0.6)
            g.barrier()
    finally:
        signal.signal(signal.SIGUSR1, before)
    g.barrier()


def check_other_threads_run_while_a_call_waits(g: comity.Group) -> None:
    if g.size == 1:
        return
    if g.rank == 0:
        counted = [0]
        stop = threading.Event()

        def count() -> None:
            while not stop.is_set():
                counted[0] += 1

        thread = threading.Thread(target=count)
        thread.start()
        g.barrier()
        stop.set()
        thread.join()
        assert counted[0] > 1000
    else:
        time.sleep(0.5)
        g.barrier()


def check_a_forked_child_is_refused(g: comity.Group) -> None:
    half = g.split(0)
    assert half is not None
    child = os.fork()
    if child == 0:
        code = 3
        try:
            for call in (lambda: half.all_sum(1), g.barrier, lambda: g.split(0), g.close, g.stats):
                with pytest.raises(comity.Forked, match="was forked from it"):
                    call()
            with pytest.raises(comity.Forked):
                g.all_sum(1, async_=True)
            # Nor does its end say goodbye in the parent's name.
            del half
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert half.all_sum(1) == g.size
    assert g.all_sum(1) == g.size
