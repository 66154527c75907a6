"""The torch tests on several versions of torch, one after the other, each in a virtual environment of its own that is removed after it.

    python python/tests/versions.py --wheel comity-0.1.0-cp311-abi3-linux_x86_64.whl 2.11.0 2.12.0 2.13.0

Runs `python/tests/pytorch` on 2 processes, without `test_frameworks.py`: all collectives, the training stacks, failures, launchers.
Prints a row for each version, and ends with 1 if one fails. A version before 2.11 must be refused with a sentence. Each one needs some 7 GB
of disk while it is tested, since PyPI's wheels bring CUDA along.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parent / "pytorch"
#: Longest an installation and a test run may take.
INSTALL, RUN = 1800, 1500
REFUSAL = """
import comity, torch.distributed as dist
try:
    dist.init_process_group("comity", store=dist.HashStore(), rank=0, world_size=1)
except comity.UnavailableError as e:
    assert "needs torch 2.11 or newer" in str(e), e
    print(e)
else:
    raise SystemExit("it was not refused")
"""


def run(*command: str | Path, limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(c) for c in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
        check=False,
    )


def row(version: str, wheel: Path, more: list[str], logs: Path | None) -> tuple[bool, str, str]:
    """Whether all is right, the torch that was tested, and the result in words."""
    home = Path(tempfile.mkdtemp(prefix=f"comity-torch-{version}-"))
    try:
        run(sys.executable, "-m", "venv", home, limit=120)
        python = home / "bin" / "python"
        wanted = [f"torch=={version}", "numpy", "pytest", "setuptools", wheel]
        got = run(python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *wanted, limit=INSTALL)
        if got.returncode:
            return False, version, f"cannot be installed: {got.stdout.splitlines()[-1]}"
        named = run(python, "-c", "import torch; print(torch.__version__)", limit=300).stdout.strip()
        if tuple(map(int, version.split(".")[:2])) < (2, 11):
            refused = run(python, "-c", REFUSAL, limit=300)
            good = refused.returncode == 0
            return good, named, "refused: " + refused.stdout.strip() if good else refused.stdout
        begun = time.monotonic()
        tests = run(
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--sizes",
            "2",
            "--ignore",
            TESTS / "test_frameworks.py",
            TESTS,
            *more,
            limit=RUN,
        )
        took = time.monotonic() - begun
        if logs is not None:
            (logs / f"torch-{version}.log").write_text(tests.stdout)
        last = next(
            (x for x in reversed(tests.stdout.splitlines()) if re.search(r"passed|failed|error", x)), "?"
        )
        failed = "".join(f"\n    {x}" for x in tests.stdout.splitlines() if x.startswith(("FAILED", "ERROR")))
        return tests.returncode == 0, named, f"{last} ({took:.0f} s){failed}"
    except subprocess.TimeoutExpired as e:
        return False, version, f"took too long: {e.cmd}"
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--tests", action="append", default=[], metavar="ARGUMENT", help="for pytest")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where to keep what the tests print")
    parser.add_argument("versions", nargs="+")
    args = parser.parse_args()
    good = True
    for version in args.versions:
        right, named, said = row(version, args.wheel.resolve(), args.tests, args.logs)
        print(f"torch {named}: {said}", flush=True)
        good &= right
    if not good:
        raise SystemExit("FAILED")


if __name__ == "__main__":
    main()
