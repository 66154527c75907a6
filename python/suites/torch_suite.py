"""torch's own tests of distributed backends, run for gloo and for Comity, and compared.

    python python/suites/torch_suite.py                         both backends, on 2 and on 3 ranks
    python python/suites/torch_suite.py --ranks 2 --only 'test_all_reduce*' --backend comity

The tests are those in torch's wheel (`torch.testing._internal.distributed.distributed_test`), for tensors in host memory. torch starts
an interpreter for each rank of each test, which takes seconds. Here torch is imported once; this process then forks one for each backend
(which imports the tests, since they ask for the backend's name and the number of ranks when they are imported), that one forks one for each
test, and that one the ranks, by torch's own `MultiProcessTestCase`. Each test has a session of its own and is killed with all its ranks
when it takes too long.

torch's tests know the names of the backends that they are for: one that they do not know is skipped without a word. Comity's name is
therefore told to them as one that can what gloo can, see `_Name`. What gloo passes must pass with Comity, apart from what
`torch_known.toml` lists. `--json FILE` keeps every failure.

Exit code 0: as it should be; 1: not.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

from compare import FAILED, PASSED, SKIPPED, Expected, Outcome, Outcomes, Verdict, counts

KNOWN = Path(__file__).with_name("torch_known.toml")
TESTS = "torch.testing._internal.distributed.distributed_test"
BACKENDS = ("gloo", "comity")
#: Longest that one test may take, in seconds. The longest that passes takes 3 on a busy machine.
LIMIT = 60
#: Longest that it may take to import the tests, in seconds.
START = 300
_fork = multiprocessing.get_context("fork")


class _Name(str):
    """Comity's name as torch's tests see it: where they ask whether the backend is gloo, it is.

    They ask so to leave tests out that only gloo is known to pass, and to choose tensors in host memory. torch itself gets the name by
    `lower()`, which is Comity's.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def _import_tests(backend: str, ranks: int) -> Any:
    """The module of the tests, for this backend and so many ranks."""
    # Some tests do more, and one is run only, where ranks meet by a file.
    meeting = Path(tempfile.gettempdir()) / "store"
    os.environ |= {"BACKEND": backend, "WORLD_SIZE": str(ranks), "INIT_METHOD": f"file://{meeting}"}
    if backend == "gloo":
        return importlib.import_module(TESTS)
    import torch.testing._internal.common_distributed as common

    import comity.torch  # noqa: F401  (its code is there before the ranks are)

    # A plugin is one that the tests believe to be there.
    common.DistTestCases.backend_feature["plugin"].add(backend)
    plain = os.environ.decodevalue

    def decode(raw: bytes) -> str:
        value = plain(raw)
        return _Name(value) if value == backend else value

    # The tests read the name from the environment once.
    with mock.patch.object(os.environ, "decodevalue", decode):
        tests = importlib.import_module(TESTS)
    if not isinstance(tests.BACKEND, _Name):
        raise SystemExit(f"{TESTS} does not read BACKEND from the environment as it did; see _import_tests")
    return tests


def _suite(tests: Any) -> type[unittest.TestCase]:
    """The tests as a class whose ranks are forked."""

    def set_up(self: Any) -> None:
        tests.TestDistBackend.setUp(self)
        self._start_processes(_fork.Process)

    bases = (tests.TestDistBackend, tests.DistributedTest._DistTestBase)
    return type("Tests", bases, {"setUp": set_up})


def _names(suite: type[unittest.TestCase], pattern: str) -> list[str]:
    return [n for n in unittest.defaultTestLoader.getTestCaseNames(suite) if fnmatch.fnmatch(n, pattern)]


# ---- one test


def _run_one(suite: type[unittest.TestCase], name: str, say: Connection, log: TextIO) -> None:
    """In a process of its own: run a test and say what came of it."""
    os.setsid()
    # torch ends ranks with it, also those that do not come back to Python.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    result = unittest.TestResult()
    try:
        unittest.TestSuite([suite(name)]).run(result)
    except BaseException:
        say.send((FAILED, traceback.format_exc()))
        return
    told = [text for _, text in result.errors + result.failures]
    if told or result.unexpectedSuccesses:
        say.send((FAILED, "\n".join(told) or "it passes, and was expected to fail"))
    elif result.skipped:
        say.send((SKIPPED, result.skipped[0][1]))
    elif result.testsRun == 1:
        say.send((PASSED, ""))
    else:
        say.send((FAILED, "it was not run"))


@dataclass
class _Running:
    """A test that is being run."""

    name: str
    process: Any
    hear: Connection
    log: TextIO
    begun: float
    limit: float

    def outcome(self) -> Outcome | None:
        """What came of it, once that is known."""
        took = time.monotonic() - self.begun
        if self.hear.poll():
            try:
                state, text = self.hear.recv()
            except EOFError:
                self.process.join(5)
                state, text = FAILED, f"its process ended with {self.process.exitcode}\n{self._printed()}"
            return Outcome(state, took, text)
        if took > self.limit:
            return Outcome(FAILED, took, f"it did not end within {self.limit:.0f} s\n{self._printed()}")
        return None

    def _printed(self) -> str:
        self.log.seek(0)
        return self.log.read()[-4000:]

    def end(self) -> None:
        """Kill what is left of it."""
        # Until it has been waited for, the number is its own; its session has the same one from its first line on.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.hear.close()
        self.log.close()


def _start(suite: type[unittest.TestCase], name: str, limit: float) -> _Running:
    hear, say = _fork.Pipe(duplex=False)
    log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (closed in `end`)
    process = _fork.Process(target=_run_one, args=(suite, name, say, log))
    process.start()
    say.close()
    return _Running(name, process, hear, log, time.monotonic(), limit)


# ---- one backend


def _run_all(
    suite: type[unittest.TestCase], names: list[str], jobs: int, limit: float
) -> Iterator[tuple[str, Outcome]]:
    """Run the tests, some at a time, and give what came of each when it has ended."""
    waiting, running = list(reversed(names)), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(suite, waiting.pop(), limit))
            wait([r.hear for r in running], timeout=1)
            for r in list(running):
                outcome = r.outcome()
                if outcome is not None:
                    running.remove(r)
                    r.end()
                    yield r.name, outcome
    finally:
        for r in running:
            r.end()


def _host(backend: str, ranks: int, args: argparse.Namespace, folder: str, say: Connection) -> None:
    """In a process of its own: all tests for one backend, with what they write in a folder."""
    tempfile.tempdir = folder
    try:
        suite = _suite(_import_tests(backend, ranks))
        for name, outcome in _run_all(suite, _names(suite, args.only), args.jobs, args.limit):
            say.send((name, outcome))
        say.send(None)
    except KeyboardInterrupt:
        sys.exit(1)


def run(backend: str, ranks: int, args: argparse.Namespace) -> Outcomes:
    """What came of each test with this backend."""
    # torch's tests leave files behind, and all the more when they are killed.
    with tempfile.TemporaryDirectory(prefix="comity-torch-", ignore_cleanup_errors=True) as folder:
        return _run_in(folder, backend, ranks, args)


def _run_in(folder: str, backend: str, ranks: int, args: argparse.Namespace) -> Outcomes:
    hear, say = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_host, args=(backend, ranks, args, folder, say))
    process.start()
    say.close()
    outcomes: Outcomes = {}
    try:
        while True:
            # Importing the tests comes first, and then some test ends within its limit.
            if not hear.poll(START + args.limit):
                raise SystemExit(f"the process that runs the tests for {backend} says nothing")
            told = hear.recv()
            if told is None:
                break
            name, outcome = told
            outcomes[name] = outcome
            if args.verbose or outcome.state == FAILED:
                what = outcome.sentence() if outcome.state == FAILED else outcome.text
                print(
                    f"{backend} {ranks}: {name}: {outcome.state}, {outcome.seconds:.1f} s {what}", flush=True
                )
    except EOFError:
        raise SystemExit(f"the process that runs the tests for {backend} ended") from None
    finally:
        process.terminate()
        process.join(30)
    return outcomes


def _settle() -> None:
    """An environment in which a rank uses one core, the loopback interface and no GPU."""
    for name in list(os.environ):
        if name.startswith(("COMITY_", "TORCH_DISTRIBUTED", "MASTER_", "RANK", "LOCAL_RANK")):
            del os.environ[name]
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    # Tests of limits give a group 1 s. That is meant for its calls, and on a slow machine eight ranks take longer to meet.
    os.environ["COMITY_JOIN_TIMEOUT"] = str(LIMIT / 2)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=[*BACKENDS, "both"], default="both")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3], metavar="N")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="tests of this name, with * and ?")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="tests at a time")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="S", help="for one test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every test and every failure there")
    parser.add_argument("--verbose", action="store_true", help="a line for every test")
    return parser.parse_args()


def main() -> int:
    args = _arguments()
    expected = Expected.read(KNOWN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    _settle()
    import torch
    import torch.testing._internal.common_distributed

    version, whole = torch.__version__.partition("+")[0], args.only == "*"
    good, kept = True, []
    for ranks in args.ranks:
        begun = time.monotonic()
        if args.backend == "both":
            theirs, ours = (run(b, ranks, args) for b in BACKENDS)
            verdict = Verdict("torch", version, ranks, "gloo", theirs, ours, time.monotonic() - begun)
            verdict.judge(expected, whole)
            verdict.show()
            good &= not verdict.wrong
            kept.append(verdict.full())
        else:
            found = run(args.backend, ranks, args)
            excused = {k.test for k in expected.known if ranks in k.ranks and args.backend == "comity"}
            failed = {name for name, o in found.items() if o.state == FAILED}
            good &= failed <= excused and bool(found)
            line = {"suite": "torch", "version": version, "ranks": ranks, args.backend: counts(found)}
            print(json.dumps(line | {"failed": sorted(failed)}), flush=True)
            kept.append(line | {args.backend: {n: vars(o) for n, o in found.items()}})
    if args.json:
        args.json.write_text(json.dumps(kept, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
