"""Small programs after what users of other systems reported, one file each in `python/suites/strangers`: each must be right with Comity.

    python python/suites/strangers.py [--only NAME ...]

A program gets the backend's name and ends with 0 if all is right. Its first lines say what was seen elsewhere. A line `# ranks: N` has it
started by `comity launch` with N ranks; without one it starts its jobs itself. It runs once more with gloo, whose end is told beside; a
line `# gloo: no` leaves that out.

Exit code 0: each is right with Comity. Lines that begin with `=>` say what was run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent / "strangers"
#: Seconds for one program: ten times as long as usual.
LIMIT = 240


def setting(name: str, key: str) -> str | None:
    """Value of a line `# KEY: VALUE` of a program."""
    found = re.search(rf"^# {key}: (\w+)$", (FOLDER / f"{name}.py").read_text(), re.M)
    return found and found[1]


def run(name: str, backend: str) -> tuple[bool, str]:
    """Whether a program ended well with this backend, and all that it printed."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), backend]
    if ranks := setting(name, "ranks"):
        launch = [sys.executable, "-m", "comity", "launch", "-n", ranks, "--timeout", str(LIMIT)]
        command = [*launch, "--", *command]
    env = {n: v for n, v in os.environ.items() if not n.startswith("COMITY_")} | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT + 30,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        return False, f"it did not end within {e.timeout:.0f} s"
    return done.returncode == 0, done.stdout


def main() -> int:
    every = sorted(file.stem for file in FOLDER.glob("*.py"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="NAME")
    names = parser.parse_args().only
    failed = []
    for name in names:
        begun = time.monotonic()
        good, said = run(name, "comity")
        gloo = (
            "" if setting(name, "gloo") == "no" else f"; gloo: {'right' if run(name, 'gloo')[0] else 'not'}"
        )
        print(f"{name}: {'right' if good else 'FAILED'}{gloo} ({time.monotonic() - begun:.1f} s)", flush=True)
        if not good:
            failed.append(name)
            print(said, flush=True)
    if failed or not names:
        print(f"failed: {', '.join(failed)}")
        return 1
    print(f"=> {len(names)} programs: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
