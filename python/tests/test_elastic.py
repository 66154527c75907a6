"""A rank is killed, and the others go on; another process comes, and is taken in with the state that it lacks."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import FOREIGN, HERE, run, succeed

import comity

LIMIT = 60
PAGE = HERE.parents[1] / "docs" / "elastic.md"
EXAMPLE = HERE.parents[1] / "examples" / "elastic" / "run.py"
KEY = bytes(range(32))

#: Adds one to the weights at each step, until a process has joined and five steps more are done.
TRAIN = """
import numpy as np
import comity

group = comity.init(timeout=30)
weights, step, last = np.zeros(1000, np.float32), 0, 1 << 40
print("in", group.rank, group.size, flush=True)

def agree():
    global weights, step, last
    furthest = group.all_max(step)
    weights, step, last = group.sync([weights, step, last], holds=step == furthest)
    print("now", group.rank, group.size, group.all_sum(1), flush=True)

def again():
    global group
    group, left, joined = comity.reform(fewest=2)
    for member, why in left:
        print("left", member.rank, member.pid, why, flush=True)
    for member in joined:
        print("joined", member.rank, member.pid, flush=True)
    return bool(joined)

if JOINS:
    step = -1
    agree()
while step < last:
    gradients = np.ones(1000, np.float32)
    try:
        if group.all_max(group.joiners()):
            if again():
                last = step + 5
                agree()
            continue
        group.all_reduce_or_keep(gradients, "avg")
    except comity.PeerLostError as e:
        assert "or call the group's reform" in str(e), e
        assert (gradients == 1).all()
        again()
        agree()
        continue
    weights += gradients
    step += 1
assert comity.init() is group
assert (weights == step).all(), (weights, step)
print("end", group.rank, group.size, flush=True)
"""


class Job:
    """A store, and ranks that are started one by one."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size = size
        self.store = comity.Store(size, key=KEY, job="elastic")
        self.key = folder / "key"
        self.key.write_bytes(KEY)
        self.key.chmod(0o600)
        self.ranks: list[subprocess.Popen[str]] = []

    def start(self, **place: str) -> "subprocess.Popen[str]":
        outside = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        meeting = {
            "COMITY_STORE": self.store.address,
            "COMITY_JOB": "elastic",
            "COMITY_KEY_FILE": str(self.key),
        }
        code = f"JOINS = {'COMITY_JOIN' in place}\n{TRAIN}"
        rank = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=outside | meeting | place
        )
        self.ranks.append(rank)
        return rank

    def start_all(self) -> None:
        for rank in range(self.size):
            self.start(COMITY_RANK=str(rank), COMITY_SIZE=str(self.size))

    def end(self) -> None:
        self.store.close()
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.communicate()


def says(rank: "subprocess.Popen[str]", words: str) -> str:
    """The rest of the next line, which begins with these words."""
    assert rank.stdout is not None
    line = rank.stdout.readline()
    assert line.startswith(words), line
    return line.removeprefix(words).strip()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Job]:
    job = Job(3, tmp_path)
    job.start_all()
    yield job
    job.end()


def test_a_job_loses_a_rank_and_takes_in_another(three: Job) -> None:
    first, lost, last = three.ranks
    for rank, process in enumerate(three.ranks):
        says(process, f"in {rank} 3")
    lost.send_signal(signal.SIGKILL)
    for rank, process in enumerate((first, last)):
        assert "died" in says(process, f"left 1 {lost.pid}")
        says(process, f"now {rank} 2 2")
    # Started as a launcher does, in the place of the one that died.
    new = three.start(COMITY_JOIN="1", COMITY_RANK="1", COMITY_SIZE="3")
    says(new, "in 2 3")
    for rank, process in enumerate((first, last)):
        says(process, f"joined 2 {new.pid}")
        says(process, f"now {rank} 3 3")
    says(new, "now 2 3 3")
    for rank, process in enumerate((first, last, new)):
        says(process, f"end {rank} 3")
        assert process.wait(LIMIT) == 0


def test_the_example_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    plot = tmp_path / "elastic.svg"
    options = ["--ranks", "2", "--steps", "80", "--pause", "0", "--plot", str(plot)]
    said = succeed(run([sys.executable, str(EXAMPLE), *options], LIMIT))
    accuracies = re.findall(r"accuracy ([\d.]+)", said)
    # That they are equal is for the exit code to tell.
    assert len(accuracies) == 2 and all(float(a) > 0.5 for a in accuracies), said
    assert "1 ranks meanwhile" in said
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")


def test_the_pages_script_survives_a_kill(tmp_path: Path) -> None:
    """The script with torch, as a reader copies it and starts it: a rank is killed, the others go on, and it comes back."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    # The test ends it.
    script.write_text(
        re.findall(r"```python\n(import os\n.*?)```", PAGE.read_text(), re.DOTALL)[0].replace("600", "600000")
    )
    outside = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    command = [
        sys.executable,
        "-m",
        "comity",
        "launch",
        "-n",
        "3",
        "--elastic",
        "2",
        "--",
        sys.executable,
        str(script),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=outside) as job:
        assert job.stdout is not None
        limit = threading.Timer(4 * LIMIT, job.kill)
        limit.start()
        said: list[str] = []

        def members(size: int) -> list[str]:
            """The process ids of the next group of so many, by rank."""
            found: dict[str, str] = {}
            for line in job.stdout or []:
                said.append(line)
                if member := re.search(rf"rank (\d+) of {size}, pid (\d+), at step", line):
                    found[member[1]] = member[2]
                    if len(found) == size:
                        return [found[str(rank)] for rank in range(size)]
            raise AssertionError("".join(said))

        try:
            first, second, third = members(3)
            os.kill(int(second), signal.SIGKILL)
            assert members(2) == [first, third]
            assert any(f"rank 1 on {os.uname().nodename} " in line for line in said), said
            *others, new = members(3)
            assert others == [first, third] and new not in (first, second, third)
        finally:
            limit.cancel()
            job.terminate()
