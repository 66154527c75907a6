"""A script of MLX under Comity, with one import changed, against MLX's own ring."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HERE, job, succeed
from ports import free_ports

SCRIPT = HERE / "scripts" / "tensor_parallel.py"
LIMIT = 90


def found(out: str) -> dict:
    lines = [line for line in out.splitlines() if "found " in line]
    assert len(lines) == 1, out
    return json.loads(lines[0].partition("found ")[2])


def under_comity(n: int, tmp_path: Path) -> dict:
    old, new = "import mlx.core as mx\n", "from comity.mlx import mx\n"
    text = SCRIPT.read_text()
    assert text.count(old) == 1
    changed = tmp_path / "changed.py"
    changed.write_text(text.replace(old, new))
    return found(succeed(job(n, str(changed), limit=LIMIT)))


def under_mlx(n: int, tmp_path: Path) -> dict:
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(n)]))
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            env=os.environ | {"MLX_RANK": str(r), "MLX_HOSTFILE": str(hosts)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(n)
    ]
    try:
        ends = [p.communicate(timeout=LIMIT) for p in processes]
    finally:
        for p in processes:
            p.kill()
            p.wait()
    assert all(p.returncode == 0 for p in processes), ends
    return found("".join(out for out, _ in ends))


@pytest.mark.parametrize("n", [2, 4])
def test_one_import(n: int, tmp_path: Path) -> None:
    ours, theirs = under_comity(n, tmp_path), under_mlx(n, tmp_path)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert _flat(ours[name]) == pytest.approx(_flat(value), rel=1e-5, abs=1e-6), name
    assert _flat(ours["sharded"]) == pytest.approx(_flat(ours["whole"]), rel=1e-5, abs=1e-6)


def _flat(value: object) -> list[float]:
    return [x for v in value for x in _flat(v)] if isinstance(value, list) else [value]
