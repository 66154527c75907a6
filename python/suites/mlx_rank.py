"""One rank of one of MLX's own distributed tests: run by `mlx_suite.py`, which says what it is for.

    python mlx_rank.py FOLDER MODULE TEST ring|comity RESULTS

Writes what came of the test to a file in the folder RESULTS.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import unittest
from pathlib import Path
from typing import Any

from compare import FAILED, PASSED, SKIPPED


def _put_in_place(library: str) -> None:
    """Let the tests have this library in `mx.distributed`.

    Each file of tests asks for the library that it is named for. Those that are for MPI and NCCL get what is to be tested.
    """
    import mlx.core as mx

    if library == "comity":
        from comity.mlx import replace

        replace()
    real, instead = mx.distributed.init, {"comity": "any", "ring": "ring"}[library]

    def init(strict: bool = False, backend: str = "any", **settings: Any) -> Any:
        return real(strict, instead if backend in ("mpi", "nccl") else backend, **settings)

    mx.distributed.init = init


def run(folder: str, module: str, test: str, library: str) -> tuple[str, str]:
    """What came of the test, here."""
    sys.path.insert(0, folder)
    result = unittest.TestResult()
    try:
        _put_in_place(library)
        tests = importlib.import_module(module)
        own = [c for c in vars(tests).values() if isinstance(c, type) and c.__module__ == module]
        (suite,) = [c for c in own if issubclass(c, unittest.TestCase)]
        unittest.TestSuite([suite(test)]).run(result)
    except BaseException:
        return FAILED, traceback.format_exc()
    told = [text for _, text in result.errors + result.failures]
    if told or not (result.testsRun or result.skipped):
        return FAILED, "\n".join(told) or "it was not run"
    return (SKIPPED, result.skipped[0][1]) if result.skipped else (PASSED, "")


def main() -> int:
    folder, module, test, library, results = sys.argv[1:]
    state, text = run(folder, module, test, library)
    Path(results, f"{os.getpid()}.json").write_text(json.dumps([state, text]))
    return 1 if state == FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
