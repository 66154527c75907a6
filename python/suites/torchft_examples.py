"""torchft's example programs over its own groups and over Comity's: a replica is killed, the other goes on, and it comes back.

    python python/suites/torchft_examples.py --source ~/torchft         a checkout of github.com/pytorch/torchft, or COMITY_TORCHFT_SOURCE

No package has these programs. In a copy of each the process group's class is replaced, and a line before the first imports stand-ins
(`torchft_stand_ins.py`). Two replicas train under a lighthouse. One is killed in the middle of a sum that the other waits in, or anywhere.

Exit code 0: with Comity all go on, and whatever torchft's groups do is said; 1: not; 3: not run, there is no checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

#: Those of its main branch; the last is of commit f5ee704, on a branch beside it.
PROGRAMS = ["train_ddp.py", "train_diloco.py", "examples/localsgd/train_localsgd.py"]
GROUPS = {
    "gloo": ("torchft", "ProcessGroupGloo"),
    "baby-gloo": ("torchft.process_group", "ProcessGroupBabyGloo"),
    "comity": ("comity.torch.ft", "ProcessGroupComity"),
}
MISSING = """not run: torchft's example programs are in no package; get them by

    git clone https://github.com/pytorch/torchft

and give the folder with --source or COMITY_TORCHFT_SOURCE"""
#: Longest that anything may take, in seconds.
LIMIT = 240
#: How long the replica that lives is in its sum before the other one is killed.
WITHIN = 1.0


class Ended(Exception):
    """A replica that should live has ended: the last that it said."""


class Job:
    """A lighthouse and two replicas of a program."""

    def __init__(self, source: Path, program: str, over: str, folder: Path) -> None:
        from torchft.coordination import LighthouseServer

        self.folder = folder
        self.script = folder / program
        self.script.parent.mkdir(parents=True, exist_ok=True)
        home, name = GROUPS[over]
        text = (source / program).read_text().replace("ProcessGroupGloo(", f"{name}(")
        text = text.replace(
            "import logging\n", f"import torchft_stand_ins\nfrom {home} import {name}\nimport logging\n", 1
        )
        # The argument's name before torchft 0.2.0.
        text = text.replace("replica_group_id=", "replica_rank=")
        if over == "baby-gloo":
            # Each new group starts a process, which imports torch.
            text = re.sub(rf"({name}\(\s*timeout=timedelta)\(seconds=\d+\)", r"\1(seconds=60)", text)
        self.script.write_text(text)
        self.lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=500)
        self.stores: list[object] = []
        self.starts = [0, 0]
        self.replicas = [self.start(number) for number in range(2)]

    def start(self, number: int) -> subprocess.Popen[bytes]:
        import torch.distributed as dist

        self.starts[number] += 1
        # Each replica has a store of its own, as under torchrun.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.stores.append(store)
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "RANK": "0",
            "WORLD_SIZE": "1",
            "REPLICA_GROUP_ID": str(number),
            "NUM_REPLICA_GROUPS": "2",
            "TORCHFT_LIGHTHOUSE": self.lighthouse.address(),
            "PYTHONPATH": path,
            "COMITY_EXAMPLE_STEPS": str(self.file(number, "steps")),
            "COMITY_EXAMPLE_HALT": str(self.file(number, "halt")),
        }
        with self.file(number, "said").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-u", str(self.script)], env=env, stdout=said, stderr=said, cwd=self.folder
            )

    def file(self, number: int, kind: str) -> Path:
        return self.folder / f"{number}.{self.starts[number]}.{kind}"

    def steps(self, number: int, since: float = 0) -> list[tuple[float, int, int, bool]]:
        """Time, number and replicas of each step, and whether it counts."""
        file = self.file(number, "steps")
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [(float(at), int(step), int(n), ok == "1") for at, step, n, ok in lines if float(at) > since]

    def wait_for(self, there: Callable[[], bool], alive: list[int]) -> None:
        until = time.monotonic() + LIMIT
        while not there():
            for number in alive:
                if self.replicas[number].poll() not in (None, 0):
                    said = self.file(number, "said").read_text().strip().splitlines()
                    raise Ended(" / ".join(said[-3:]))
            if time.monotonic() > until:
                raise Ended(f"nothing within {LIMIT} s")
            time.sleep(0.01)

    def together(self, since: float = 0) -> bool:
        return any(n == 2 and ok for _, _, n, ok in self.steps(0, since))

    def kill(self, *, within_a_sum: bool) -> str:
        """How long it is from the kill to the next step that counts, and to the first of two replicas after that."""
        self.wait_for(self.together, [0, 1])
        if within_a_sum:
            self.file(1, "halt").touch()
            self.wait_for(self.file(1, "halted").exists, [0, 1])
            time.sleep(WITHIN)
        else:
            time.sleep(random.uniform(0, 2))
        killed = time.monotonic()
        self.replicas[1].kill()
        self.replicas[1].wait()
        self.wait_for(lambda: any(ok for *_, ok in self.steps(0, killed)), [0])
        after = self.steps(0, killed)
        next_at = next(at for at, _, _, ok in after if ok)
        lost = sum(not ok for at, _, _, ok in after if at <= next_at)
        self.replicas[1] = self.start(1)
        self.wait_for(lambda: self.together(next_at) or self.replicas[0].poll() == 0, [0, 1])
        back = [at - killed for at, _, n, ok in self.steps(0, next_at) if n == 2 and ok]
        both = (
            f"both after {back[0]:.2f} s" if back else "it had done all its steps before the other was back"
        )
        return f"goes on after {next_at - killed:.2f} s, steps lost: {lost}; {both}"

    def end(self) -> None:
        for replica in self.replicas:
            replica.kill()
            replica.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=os.environ.get("COMITY_TORCHFT_SOURCE"))
    parser.add_argument("--over", choices=[*GROUPS], nargs="+", default=[*GROUPS])
    parser.add_argument("--program", nargs="+", default=PROGRAMS)
    parser.add_argument("--kills", type=int, default=2, help="half of them in the middle of a sum")
    parser.add_argument("--keep", type=Path, help="a folder for what the replicas say")
    args = parser.parse_args()
    if args.source is None:
        print(MISSING)
        return 3
    wrong = 0
    for program in args.program:
        if not (Path(args.source) / program).exists():
            print(f"{program}: not in this checkout")
            continue
        for over in args.over:
            for i in range(args.kills):
                with contextlib.ExitStack() as stack:
                    within = i % 2 == 0
                    name = f"{Path(program).stem}-{over}-{i}"
                    folder = (
                        args.keep / name
                        if args.keep
                        else Path(stack.enter_context(tempfile.TemporaryDirectory()))
                    )
                    folder.mkdir(parents=True, exist_ok=True)
                    job = Job(Path(args.source), program, over, folder)
                    stack.callback(job.end)
                    where = "within a sum" if within else "anywhere"
                    try:
                        said = job.kill(within_a_sum=within)
                    except Ended as e:
                        said = f"does not go on: {e}"
                        wrong += over == "comity"
                print(f"{program} over {over}, killed {where}: {said}", flush=True)
    if wrong:
        return 1
    if "comity" in args.over:
        print("=> torchft's example programs go on over Comity after a kill")
    return 0


if __name__ == "__main__":
    sys.exit(main())
