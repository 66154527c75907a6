"""Ranks that die, leave or never come, seen from Python."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import HERE, job, run, succeed
from ports import free_ports

LIMIT = 60


class Ranks:
    """Ranks that are started one by one, without a launcher that ends them all; they meet through files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, n: int, code: str) -> Sequence["subprocess.Popen[str]"]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("COMITY_")}
        env["PYTHONPATH"] = str(HERE)
        for rank in range(n):
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", PRELUDE + code, str(rank), str(n), str(self.folder)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=env,
                )
            )
        return self.processes

    def ends(self) -> list[tuple[int, str, str]]:
        """Exit code, output and errors of each rank."""
        ends = []
        for p in self.processes:
            out, err = p.communicate(timeout=LIMIT)
            ends.append((p.returncode, out, err))
        return ends


PRELUDE = """
import sys, os, time, signal, threading
import numpy as np
import comity
from comity import _core
from comity._group import Group
from files import set_in, get_in
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def meet(prefix="job", **variables):
    raw = _core.init_with_store(
        rank, size, set_in(folder), get_in(folder), prefix=prefix, variables={"COMITY_TIMEOUT": "30"} | variables
    )
    return Group(raw)
"""


@pytest.fixture
def ranks(tmp_path: Path):
    made = Ranks(tmp_path)
    yield made
    for p in made.processes:
        if p.poll() is None:
            p.kill()
            p.communicate()


def test_a_killed_rank_is_named_to_all(ranks: Ranks) -> None:
    code = """
g = meet()
g.barrier()
print(os.getpid(), flush=True)
if rank == 1:
    time.sleep(60)
try:
    g.all_sum(np.ones(5, np.float32))
except comity.PeerLostError as e:
    assert e.rank == 1, e
    assert "all_reduce" in e.call and "f32[5]" in e.call, e.call
    print(f"lost: {e}")
    try:
        g.barrier()
    except comity.PeerLostError as e:
        assert "failed earlier" in str(e) and e.rank == 1
        print("and still")
"""
    started = ranks.start(3, code)
    pids = [int(p.stdout.readline()) for p in started]
    assert pids == [p.pid for p in started]
    started[1].send_signal(signal.SIGKILL)
    ends = ranks.ends()
    assert ends[1][0] == -signal.SIGKILL
    for code_, out, err in (ends[0], ends[2]):
        assert code_ == 0, err
        assert f"pid {pids[1]}" in out
        assert "and still" in out


def test_a_call_without_a_limit_waits_while_all_live_and_no_longer(ranks: Ranks) -> None:
    started = ranks.start(
        2,
        """
import math
# Both run before either waits for the other.
set_in(folder)(f"up{rank}", "")
get_in(folder)(f"up{1 - rank}", 30)
g = meet(COMITY_TIMEOUT="none", COMITY_JOIN_TIMEOUT="3")
assert g.timeout == math.inf, g.timeout
if rank == 0:
    # It prepares for longer than any other limit: the pair's link is made meanwhile.
    time.sleep(4)
assert g.all_sum(np.ones(5, np.float32))[0] == 2
g.timeout = 0.5
assert g.timeout == 0.5
if rank == 0:
    time.sleep(1)
g.barrier(timeout=math.inf)
g.timeout = math.inf
print("waited", flush=True)
if rank == 0:
    time.sleep(60)
try:
    g.barrier()
except comity.PeerLostError as e:
    print(e.rank)
""",
    )
    assert [p.stdout.readline() for p in started] == ["waited\n", "waited\n"]
    started[0].send_signal(signal.SIGKILL)
    assert ranks.ends()[1][:2] == (0, "0\n")


def test_a_timeout_names_the_way_to_wait(ranks: Ranks) -> None:
    ranks.start(
        2,
        """
g = meet()
if rank == 0:
    get_in(folder)("told", 30)
else:
    try:
        g.barrier(timeout=0.2)
    except comity.Error as e:
        print(e)
    set_in(folder)("told", "")
""",
    )
    assert (
        "COMITY_TIMEOUT, or the limit of this group or call, if it is only slow (none: as long as all ranks live)"
        in ranks.ends()[1][1]
    )


def test_a_rank_that_leaves_is_named(ranks: Ranks) -> None:
    ranks.start(
        2,
        """
g = meet()
# Both are in: one that leaves while the other still joins is another error.
g.barrier()
if rank == 0:
    sys.exit(0)
try:
    g.barrier()
except comity.PeerLostError as e:
    assert e.rank == 0
    print("lost")
""",
    )
    ends = ranks.ends()
    assert ends[0][0] == 0, ends[0][2]
    assert (ends[1][0], ends[1][1]) == (0, "lost\n"), ends[1][2]


def test_a_process_ends_with_calls_under_way(ranks: Ranks) -> None:
    ranks.start(
        2,
        """
g = meet()
g.barrier()
if rank == 0:
    # Never answered: no wait, a callback that would run Python, and an uncaught exception.
    request = g.all_sum(np.ones(3), async_=True)
    request.add_done_callback(lambda r: print("told"))
    threading.Thread(target=request.exception).start()
    raise ValueError("the end")
try:
    time.sleep(0.5)
    g.barrier()
except comity.Error as e:
    print(type(e).__name__)
""",
    )
    start = time.monotonic()
    ends = ranks.ends()
    assert ends[0][0] == 1
    assert "ValueError: the end" in ends[0][2]
    assert "Fatal" not in ends[0][2]
    assert ends[1][0] == 0, ends[1][2]
    assert ends[1][1].strip() in ("PeerLostError", "MismatchError", "AbortedError")
    assert time.monotonic() - start < LIMIT


def test_ctrl_c_while_ranks_meet(ranks: Ranks) -> None:
    ranks.start(
        1,
        """
size = 2
sent = []
def send():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Timer(0.5, send).start()
    meet()
except KeyboardInterrupt:
    # The limits are 30 s and more.
    assert time.monotonic() - sent[0] < 20
    print("interrupted")
""",
    )
    ((code, out, err),) = ranks.ends()
    assert (code, out) == (0, "interrupted\n"), err


def test_stores_that_fail_and_time_out(ranks: Ranks) -> None:
    ranks.start(
        1,
        """
def broken(*_):
    raise OSError("the store is down")
for set, get, me in ((broken, get_in(folder), 0), (set_in(folder), broken, 1), (set_in(folder), get_in(folder), 1)):
    start = time.monotonic()
    try:
        _core.init_with_store(me, 2, set, get, prefix="x", variables={"COMITY_JOIN_TIMEOUT": "1"})
    except comity.JoinError as e:
        print(f"join: {e}")
    assert time.monotonic() - start < 20
""",
    )
    ((code, out, err),) = ranks.ends()
    assert code == 0, err
    assert out.count("join: ") == 3
    assert out.count("the store is down") == 2
    assert "not set in time" in out


def test_two_groups_over_one_store(ranks: Ranks) -> None:
    ranks.start(
        2,
        """
a, b = meet("first"), meet("second", COMITY_LINKS="tcp")
assert a.all_sum(1) == b.all_sum(1) == 2
assert a.links[1 - rank] == "shm" and b.links[1 - rank] == "tcp"
x = np.arange(1 << 18, dtype=np.float32)
np.testing.assert_array_equal(b.all_sum(x), 2 * x)
a.close()
assert b.all_gather(rank) == [0, 1]
print("good")
""",
    )
    assert [(c, o) for c, o, _ in ranks.ends()] == [(0, "good\n")] * 2


AGAIN = """
import comity, numpy as np

group = comity.init()
assert comity.init() is group
try:
    # What is refused harms nothing.
    group.broadcast(np.ones(2), 7)
except comity.MisuseError:
    assert comity.init() is group
# Both are in: a rank that gives up while the other is still in its init fails that init, too, or a call of the group.
group.split(0).barrier()
if HOW == "abort" and group.rank == 0:
    group.abort("to begin anew")
try:
    comity.all_reduce(np.ones(2 + (HOW == "mismatch") * group.rank))
    raise SystemExit("nothing failed")
except comity.Error as e:
    first = type(e)
try:
    comity.barrier()
    raise SystemExit("functions do not begin anew by themselves")
except first:
    pass
anew = comity.init()
assert anew is not group and comity.init() is anew
assert group.closed
assert comity.all_reduce(np.ones(2)).tolist() == [2.0, 2.0]
print("anew")
"""


@pytest.mark.parametrize("how", ["abort", "mismatch"])
def test_init_after_a_failure_begins_anew(how: str) -> None:
    assert succeed(job(2, "-c", f"HOW = {how!r}\n{AGAIN}")).count("anew") == 2


def test_an_interrupted_init_leaves_nothing_behind() -> None:
    code = """
import os, signal, subprocess, sys, threading, time
import comity
ALONE = "import comity; assert comity.init().all_sum(1) == 2"

def held():
    names = []
    for thread in os.listdir("/proc/self/task"):
        try:
            names.append(open(f"/proc/self/task/{thread}/comm").read())
        except FileNotFoundError:
            # The timer's thread, which ends about now.
            continue
    return sum(n.startswith("comity-") for n in names), len(os.listdir("/proc/self/fd"))

def settled(before):
    # A thread that ends is listed a little longer.
    until = time.monotonic() + 20
    while time.monotonic() < until and any(now > then for now, then in zip(held(), before)):
        time.sleep(0.01)
    return all(now <= then for now, then in zip(held(), before))

def interrupted():
    # As in a notebook, whose kernel goes on.
    timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        comity.init()
    except KeyboardInterrupt:
        timer.join()
        return
    sys.exit("init was not interrupted")

begun = time.monotonic()
interrupted()
before = held() if os.path.exists("/proc/self/task") else None
interrupted()
# Each would take a minute otherwise.
assert time.monotonic() - begun < 50
assert before is None or settled(before), (before, held())
other = subprocess.Popen([sys.executable, "-c", ALONE], env=os.environ | {"COMITY_RANK": "1"})
assert comity.init().all_sum(1) == 2
assert other.wait(60) == 0
print("both")
"""
    place = {"COMITY_RANK": "0", "COMITY_SIZE": "2", "COMITY_INSECURE": "1", "MASTER_ADDR": "127.0.0.1"}
    place["MASTER_PORT"] = str(free_ports(1)[0])
    assert succeed(run([sys.executable, "-c", code], LIMIT, **place)) == "both\n"


def test_calls_of_objects_match_no_calls_of_arrays(ranks: Ranks) -> None:
    code = """
g = meet()
big = np.array([1 << 60])
arrays = {
    "all_gather": lambda g: g.all_gather(big),
    "broadcast": lambda g: g.broadcast(big.copy(), 1),
    "scatter": lambda g: g.scatter(np.repeat(big, 2), 1),
    "barrier": lambda g: g.barrier(),
}
objects = {
    "all_gather": lambda g: g.all_gather_object({"a": 1}),
    "broadcast": lambda g: g.broadcast_object({"a": 1}, 1),
    "scatter": lambda g: g.scatter_object([{}, {}] if g.rank == 1 else None, 1),
}
for name, made in objects.items():
    for other in (name, "barrier"):
        own = g.split(0)
        try:
            got = made(own) if rank == 0 else arrays[other](own)
            # A root that only sends is told in its next call.
            own.barrier()
        except comity.MismatchError as e:
            words = str(e)
            # Whose call began the check names its own first.
            assert f"{name} of objects" in words and (other == "barrier" or words.count(name) == 2), words
        else:
            raise SystemExit(f"{name} beside {other}: {got!r}")
        # Both are told in this group; the next pair has a group of its own.
        g.barrier()
assert g.all_gather_object(rank) == [0, 1]
assert g.all_gather(big + rank).tolist() == [1 << 60, (1 << 60) + 1]
print("told")
g.close()
"""
    ranks.start(2, code)
    ends = ranks.ends()
    for code_, out, _ in ends:
        assert code_ == 0 and out == "told\n", [e for _, _, e in ends]
