"""`cargo xtask check`: what a change of the last minutes needs, in under two: formatting, the rules of `tools/gates.py`, clippy, and the
tests of the packages that changed since a commit."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CARGO = os.environ.get("CARGO", "cargo")


def output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    return done.stdout if done.returncode == 0 else sys.exit(f"{' '.join(command)} failed")


def step(name: str, *command: str | Path) -> None:
    """Run a command; one that fails ends the check."""
    begun = time.monotonic()
    print(f"=== {name}", flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(f"{name} failed")
    print(f"=== {name}: {time.monotonic() - begun:.1f} s", flush=True)


def is_for_all(file: str) -> bool:
    """Whether every package is built with this file."""
    return file in {"Cargo.toml", "Cargo.lock"} or file.startswith(".config/")


def packages(files: list[str]) -> list[str]:
    """Packages of the workspace to which these files belong."""
    metadata = json.loads(output(CARGO, "metadata", "--no-deps", "--format-version", "1", "--offline"))
    folders = {package["name"]: Path(package["manifest_path"]).parent for package in metadata["packages"]}
    return [name for name, at in folders.items() if any((ROOT / file).is_relative_to(at) for file in files)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="cargo xtask check", description=__doc__, allow_abbrev=False)
    parser.add_argument("--since", metavar="COMMIT", default="HEAD", help="HEAD: what is not committed")
    since = parser.parse_args().since
    begun = time.monotonic()
    changed = output("git", "diff", "--name-only", since, "--").splitlines()
    changed += output("git", "ls-files", "--others", "--exclude-standard").splitlines()
    there = [file for file in changed if (ROOT / file).is_file()]
    if rust := [file for file in there if file.endswith(".rs")]:
        step("format", "rustfmt", "--edition", "2024", "--check", *rust)
        step("gates", sys.executable, "tools/gates.py")
    named = packages(changed)
    is_all = any(map(is_for_all, changed))
    if is_all or named:
        step("clippy", CARGO, "clippy", "--workspace", "--all-targets", "--", "-D", "warnings")
        # Without what holds a time, and what takes seconds: the gate has those. Only these are built: what depends on them was looked at
        # by clippy. The Python module has no tests of its own kind.
        which = [word for name in named if name != "comity-py" for word in ("-p", name)]
        if is_all or which:
            nextest = (CARGO, "nextest", "run", "--profile", "check", "--no-tests", "pass")
            step("tests", *nextest, *(["--workspace"] if is_all else which))
    if any(file.endswith((".py", ".pyi")) for file in there):
        python = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "python/bin/python"
        if python.is_file():
            step("ruff", python, "-m", "ruff", "check", "--quiet")
            step("ruff format", python, "-m", "ruff", "format", "--quiet", "--check")
        else:
            print("!!! Python files changed and were not looked at: `cargo xtask test --only prepare` first")
    print(f"in all {time.monotonic() - begun:.1f} s; before you hand it on: cargo xtask test")


if __name__ == "__main__":
    main()
