"""torchft's manager with its own process group over gloo, and with Comity's: a replica is killed, the others go on, and it comes back.

    python python/suites/torchft_suite.py                     both
    python python/suites/torchft_suite.py --over comity

Three replicas of one rank train with torchft's DistributedDataParallel, under a lighthouse of its own. One is killed and started again; it
gets the state of the others. All must end at one step with the same weights. Then torchft's own tests of DDP, LocalSGD and DiLoCo, which
are in its wheel, are run with Comity in the place of gloo. Needs `torchft.txt`.

Exit code 0: as it should be; 1: not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

REPLICAS, VICTIM = 3, 2
#: Longest that anything may take, in seconds.
LIMIT = 240
#: torchft's tests of whole jobs, whose replicas are threads.
TESTS = ("torchft.manager_integ_test", "torchft.local_sgd_integ_test")
#: Puts Comity in the place of gloo.
PLUGIN = """
import torchft
import torchft.process_group
from comity.torch.ft import ProcessGroupComity

torchft.ProcessGroupGloo = torchft.process_group.ProcessGroupGloo = ProcessGroupComity
"""


def replica(over: str, number: int, lighthouse: str, folder: str) -> None:
    """Train until all replicas have been there for ten steps after one came back."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    errors = os.open(f"{folder}/{over}-{number}.err", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(errors, 1)
    os.dup2(errors, 2)

    def say(line: str) -> None:
        with open(f"{folder}/{over}-{number}", "a") as out:
            out.write(f"{line}\n")

    # Each replica has a store of its own, as under torchrun.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "RANK": "0", "WORLD_SIZE": "1"}
    torch.manual_seed(1)
    torch.set_num_threads(1)
    if over == "gloo":
        group: Any = ProcessGroupGloo(timeout=timedelta(seconds=20))
    else:
        from comity.torch.ft import ProcessGroupComity

        group = ProcessGroupComity(timeout=timedelta(seconds=20))
    inner = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=group,
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"replica_{number}",
        lighthouse_addr=lighthouse,
        timeout=timedelta(seconds=30),
    )
    model = DistributedDataParallel(manager, inner)
    optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=0.01))
    rows = torch.Generator().manual_seed(number)
    end = Path(folder) / f"{over}-end"
    while not (end.exists() and manager.current_step() >= int(end.read_text())):
        x = torch.randn(16, 8, generator=rows)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()
        say(f"{time.monotonic():.4f} {manager.current_step()} {manager.num_participants()}")
        time.sleep(0.02)
    weights = sum(p.double().sum().item() for p in model.parameters())
    say(f"end {manager.current_step()} {weights:.12f}")
    manager.shutdown(wait=False)


class Job:
    """A lighthouse and its replicas."""

    def __init__(self, over: str, folder: str) -> None:
        from torchft.coordination import LighthouseServer

        self.over, self.folder = over, folder
        self.processes = multiprocessing.get_context("forkserver")
        self.lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=500)
        self.replicas = [self.start(number) for number in range(REPLICAS)]

    def start(self, number: int) -> Any:
        args = (self.over, number, self.lighthouse.address(), self.folder)
        process = self.processes.Process(target=replica, args=args, daemon=True)
        process.start()
        return process

    def lines(self, number: int) -> list[list[str]]:
        file = Path(self.folder) / f"{self.over}-{number}"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def wait_for(self, what: str, there: Callable[[], bool]) -> None:
        until = time.monotonic() + LIMIT
        while not there():
            if time.monotonic() > until:
                said = (Path(self.folder) / f"{self.over}-0.err").read_text()[-4000:]
                raise SystemExit(f"{self.over}: {what}: not within {LIMIT} s\n{said}")
            time.sleep(0.02)

    def run(self) -> float:
        """Seconds from the kill to the first step of those that were left."""
        self.wait_for("all come", lambda: any(line[2] == str(REPLICAS) for line in self.lines(0)))
        killed = time.monotonic()
        os.kill(self.replicas[VICTIM].pid, signal.SIGKILL)
        self.replicas[VICTIM].join()

        def after() -> list[list[str]]:
            return [line for line in self.lines(0) if float(line[0]) > killed]

        self.wait_for("the others go on", lambda: any(line[2] == str(REPLICAS - 1) for line in after()))
        took = next(float(line[0]) for line in after() if line[2] == str(REPLICAS - 1)) - killed
        self.replicas[VICTIM] = self.start(VICTIM)
        self.wait_for("it comes back", lambda: after()[-1][2] == str(REPLICAS))
        last = int(self.lines(0)[-1][1]) + 20
        end = Path(self.folder) / f"{self.over}-end"
        end.with_suffix(".new").write_text(str(last))
        end.with_suffix(".new").rename(end)
        self.wait_for("all end", lambda: all(not r.is_alive() for r in self.replicas))
        ends = {tuple(self.lines(number)[-1]) for number in range(REPLICAS)}
        if len(ends) != 1 or ends.pop()[:2] != ("end", str(last)):
            raise SystemExit(
                f"{self.over}: not all ended alike: {[self.lines(n)[-1] for n in range(REPLICAS)]}"
            )
        return took


def own_tests(folder: str) -> int:
    """How many of torchft's own tests pass over Comity: all that are for tensors in host memory."""
    Path(folder, "over_comity.py").write_text(PLUGIN)
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    options = [
        "-q",
        "-p",
        "over_comity",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-k",
        "not cuda",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--pyargs", *TESTS],
        capture_output=True,
        text=True,
        timeout=4 * LIMIT,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    if done.returncode or passed is None:
        raise SystemExit(f"torchft's own tests over Comity:\n{done.stdout[-8000:]}")
    return int(passed[1])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--over", choices=["gloo", "comity"], nargs="+", default=["gloo", "comity"])
    args = parser.parse_args()
    # Torch is imported once, and replicas are forked from there.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "torchft"])
    said = []
    with tempfile.TemporaryDirectory() as folder:
        for over in args.over:
            took = Job(over, folder).run()
            said.append(f"over {over} the others go on after {took:.2f} s")
        if "comity" in args.over:
            said.append(f"{own_tests(folder)} of torchft's own tests pass over Comity")
    print(f"=> torchft's replicas end alike after one was killed and came back; {', '.join(said)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
