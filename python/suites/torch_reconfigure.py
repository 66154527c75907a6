"""torch's own tests of groups whose members change, run for gloo and for Comity, and compared.

    python python/suites/torch_reconfigure.py --source ~/pytorch        a checkout of github.com/pytorch/pytorch, or COMITY_TORCH_SOURCE

No package has these tests (`test/distributed/test_c10d_fault_tolerance.py`), so they must be got beside torch. The file has a list of
backends; Comity is put into a copy of it. There ranks are forked, since each would import torch for seconds. Every test that gloo passes
must pass with Comity.

Exit code 0: as it should be; 1: not; 3: not run, there is no checkout.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FILE = Path("test/distributed/test_c10d_fault_tolerance.py")
GLOO = '("gloo", "cpu"),'
SPAWN = "self._spawn_processes()"
FORK = 'self._start_processes(__import__("multiprocessing").get_context("fork").Process)'
#: Of torch's repository: these tests were run.
COMMIT = "032af12a437bbb5f52b2f995d78454e8e79ab926"
MISSING = f"""not run: torch's tests of groups whose members change are in no package; get them by

    git clone --filter=blob:none --sparse https://github.com/pytorch/pytorch
    git -C pytorch sparse-checkout set test/distributed
    git -C pytorch checkout {COMMIT}

and give the folder with --source or COMITY_TORCH_SOURCE"""
#: Longest that all may take, in seconds.
LIMIT = 1800
_OUTCOME = re.compile(r"^(PASSED|FAILED|SKIPPED) \S*?::(\w+)FaultToleranceTest::(\w+)", re.MULTILINE)


def run(source: Path) -> tuple[dict[str, dict[str, str]], str]:
    """What came of each test, by backend; and all that was said."""
    text = (source / FILE).read_text()
    if GLOO not in text:
        raise SystemExit(f"{source / FILE} has no list of backends with {GLOO}")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / FILE.name
        copy.write_text(text.replace(GLOO, f'{GLOO} ("comity", "cpu"),', 1).replace(SPAWN, FORK, 1))
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(copy)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, cwd=folder, check=False, env=os.environ
        )
    found: dict[str, dict[str, str]] = {}
    for state, backend, test in _OUTCOME.findall(done.stdout):
        found.setdefault(backend.lower(), {})[test] = state
    return found, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=os.environ.get("COMITY_TORCH_SOURCE"))
    args = parser.parse_args()
    if args.source is None:
        print(MISSING)
        return 3
    found, said = run(Path(args.source))
    theirs, ours = found.get("gloo", {}), found.get("comity", {})
    passed = [test for test, state in theirs.items() if state == "PASSED"]
    wrong = [test for test in passed if ours.get(test) != "PASSED"]
    if wrong or not passed:
        print(said[-20000:])
        print(f"gloo passes {len(passed)}, and Comity fails {', '.join(wrong) or 'none'}")
        return 1
    print(f"=> Comity passes all {len(passed)} tests of torch's reconfigure that gloo passes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
