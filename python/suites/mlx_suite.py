"""MLX's own tests of `mx.distributed`, run for its ring and for Comity, and compared.

    python python/suites/mlx_suite.py --source ~/mlx            a checkout of github.com/ml-explore/mlx, or COMITY_MLX_SOURCE

PyPI has MLX as wheels, without tests, so that they must be got beside it. Every test is a job of its own: `comity launch` with
`comity.mlx.replace`, or MLX's ring on the loopback interface. The tests for the ring run on 2, 3 and 4 ranks. Those for MPI and NCCL that
the ring's do not have are for 8 ranks, and are run with the ring and with Comity in the place of MPI and NCCL: the ring, which has no
groups within groups, fails most of them. What the ring passes must pass with Comity, apart from what `mlx_known.toml` lists.

Exit code 0: as it should be; 1: not; 3: not run, there is no checkout.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version as version_of
from pathlib import Path

from compare import FAILED, PASSED, SKIPPED, Expected, Outcome, Outcomes, Verdict

HERE = Path(__file__).parent
KNOWN = HERE / "mlx_known.toml"
COMMON, RING, MPI, NCCL = (
    "mlx_distributed_tests",
    "ring_test_distributed",
    "mpi_test_distributed",
    "nccl_test_distributed",
)
FILES = (COMMON, RING, MPI, NCCL, "mlx_tests")
#: The tests for MPI and NCCL ask for so many.
LARGE = 8
#: Longest that one test may take, in seconds.
LIMIT = 120
#: Of MLX's repository: its tests were counted there.
COMMIT = "846d176227a0ac13d2667e58d2bb68b322109ab0"
MISSING = f"""not run: MLX's tests are in no package; get them by

    git clone https://github.com/ml-explore/mlx
    git -C mlx checkout {COMMIT}

and give the folder with --source or COMITY_MLX_SOURCE"""


def _tests_in(file: Path) -> list[str]:
    """The names of the tests that a file has itself. It is not imported: that would ask for a library."""
    classes = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef)]
    functions = [f.name for c in classes for f in c.body if isinstance(f, ast.FunctionDef)]
    return [name for name in functions if name.startswith("test_")]


def _all_tests(folder: Path, ranks: int) -> list[tuple[str, str]]:
    """The tests for so many ranks, with their files."""
    found = {name: _tests_in(folder / f"{name}.py") for name in FILES}
    if ranks < LARGE:
        return [(RING, test) for test in found[COMMON] + found[RING]]
    return [(file, test) for file in (MPI, NCCL) for test in found[file]]


# ---- one test


def _commands(
    library: str, ranks: int, rank: list[str], folder: Path
) -> list[tuple[list[str], dict[str, str]]]:
    """What to start for one test, and with what in the environment."""
    if library == "comity":
        launch = str(Path(sys.executable).with_name("comity"))
        return [([launch, "launch", "-n", str(ranks), "--", *rank], {})]
    sys.path.append(str(HERE.parent / "tests"))
    from ports import free_ports

    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(ranks)]))
    return [(rank, {"MLX_RANK": str(r), "MLX_HOSTFILE": str(hosts)}) for r in range(ranks)]


def _run_one(source: Path, library: str, ranks: int, file: str, test: str, limit: float) -> Outcome:
    """Run a test as a job of its own, to its end or for so many seconds."""
    begun = time.monotonic()
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("COMITY_", "MLX_"))}
    outside |= {"OMP_NUM_THREADS": "1", "DEVICE": "cpu"}
    with tempfile.TemporaryDirectory(prefix="comity-mlx-") as folder, open(f"{folder}/log", "w+") as log:
        results = Path(folder, "results")
        results.mkdir()
        rank = [sys.executable, str(HERE / "mlx_rank.py"), str(source), file, test, library, str(results)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for command, more in _commands(library, ranks, rank, Path(folder)):
                environment = outside | more
                processes.append(
                    subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
                )
            late = _wait(processes, begun + limit)
        finally:
            for process in processes:
                _end(process)
        log.seek(0)
        printed = log.read()[-4000:]
        told = [json.loads(f.read_text()) for f in sorted(results.iterdir())]
    took = time.monotonic() - begun
    if late:
        return Outcome(FAILED, took, f"it did not end within {limit:.0f} s\n{printed}")
    for state in (FAILED, SKIPPED):
        texts = [text for s, text in told if s == state]
        if texts:
            return Outcome(state, took, "\n".join(texts))
    if len(told) < ranks or any(p.returncode for p in processes):
        codes = [p.returncode for p in processes]
        return Outcome(
            FAILED, took, f"{len(told)} of {ranks} ranks ended well, exit codes {codes}\n{printed}"
        )
    return Outcome(PASSED, took)


def _wait(processes: list[subprocess.Popen[bytes]], until: float) -> bool:
    """Wait for the processes, and a few seconds only once one has failed; whether there was no end to it."""
    while any(p.poll() is None for p in processes):
        if time.monotonic() > until:
            return not any(p.returncode for p in processes)
        if any(p.returncode for p in processes):
            # The ring does not notice; what the failed one says is enough.
            until = min(until, time.monotonic() + 5)
        time.sleep(0.02)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
    # The session may have others in it; until then its number is not given to anyone else.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# ---- all of them


def run(source: Path, library: str, ranks: int, args: argparse.Namespace) -> Outcomes:
    """What came of each test with this library."""

    def one(which: tuple[str, str]) -> tuple[str, Outcome]:
        file, test = which
        # The same name may be in two files.
        name = f"{file.partition('_')[0]}.{test}"
        outcome = _run_one(source, library, ranks, file, test, args.limit)
        if args.verbose or outcome.state == FAILED:
            what = outcome.sentence() if outcome.state == FAILED else outcome.text
            print(f"{library} {ranks}: {name}: {outcome.state}, {outcome.seconds:.1f} s {what}", flush=True)
        return name, outcome

    chosen = [(f, t) for f, t in _all_tests(source, ranks) if fnmatch.fnmatch(t, args.only)]
    with ThreadPoolExecutor(args.jobs) as pool:
        return dict(pool.map(one, chosen))


def _fingerprint(source: Path) -> str:
    """Which tests these are."""
    return hashlib.sha256(b"".join((source / f"{name}.py").read_bytes() for name in FILES)).hexdigest()


def _source(given: Path | None) -> Path | None:
    """Where the tests are, if they are anywhere."""
    for folder in (given, given and given / "python" / "tests"):
        if folder and all((folder / f"{name}.py").is_file() for name in FILES):
            return folder.resolve()
    return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    from_outside = os.environ.get("COMITY_MLX_SOURCE")
    parser.add_argument("--source", type=Path, default=Path(from_outside) if from_outside else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, LARGE], metavar="N")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="tests of this name, with * and ?")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="tests at a time")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="S", help="for one test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every test and every failure there")
    parser.add_argument("--verbose", action="store_true", help="a line for every test")
    return parser.parse_args()


def main() -> int:
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    version, source = version_of("mlx"), _source(args.source)
    if source is None:
        print(MISSING)
        print(json.dumps({"suite": "mlx", "version": version, "not_run": "there is no checkout of MLX"}))
        return 3
    expected = Expected.read(KNOWN)
    whole = args.only == "*"
    if expected.tests != _fingerprint(source):
        print(f"{source} has other tests than those that {KNOWN.name} counts ({_fingerprint(source)})")
        whole = False
    good, kept = True, []
    for ranks in args.ranks:
        begun = time.monotonic()
        theirs, ours = (run(source, library, ranks, args) for library in ("ring", "comity"))
        verdict = Verdict("mlx", version, ranks, "ring", theirs, ours, time.monotonic() - begun)
        verdict.judge(expected, whole)
        verdict.show()
        good &= not verdict.wrong
        kept.append(verdict.full())
    if args.json:
        args.json.write_text(json.dumps(kept, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
