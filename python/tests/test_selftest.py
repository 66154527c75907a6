"""The rows of `comity selftest` that need Python: each part passes here, and fails where a result is wrong."""

import importlib.metadata
import json
import sys

import pytest
from conftest import job, run, succeed

WRONG = """
import sys, comity, comity.selftest
real = comity.Group.all_reduce
comity.Group.all_reduce = lambda self, x, *args, **named: real(self, x, *args, **named) + 1
sys.exit(comity.selftest.main(["numpy"]))
"""


@pytest.mark.parametrize("part", ["array", "numpy", "torch", "mlx"])
def test_each_part_passes(part: str) -> None:
    out = succeed(job(2, "-m", "comity.selftest", part))
    assert out.count(f"{part} on 2 ranks: all ok") == 2, out


def test_a_wrong_result_is_told() -> None:
    done = job(2, "-c", WRONG)
    assert done.returncode == 1 and "all_reduce of uint8[1]: the result is wrong" in done.stderr, done


def test_it_tells_what_is_installed_and_knows_no_other_part() -> None:
    found = json.loads(succeed(run([sys.executable, "-m", "comity.selftest"])))
    assert {"numpy": importlib.metadata.version("numpy"), "mps": False, "cuda": 0}.items() <= found.items(), (
        found
    )
    done = run([sys.executable, "-m", "comity.selftest", "cupy"])
    assert done.returncode == 2 and "there is no part cupy" in done.stderr
