"""A script of MLX under Comity, with one import changed, against MLX's own ring."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HERE, job, run, succeed
from ports import free_ports

SCRIPT = HERE / "scripts" / "tensor_parallel.py"
LIMIT = 300


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


def test_no_edit_at_all(tmp_path: Path) -> None:
    ours, theirs = (
        found(succeed(job(2, "-m", "comity.mlx", str(SCRIPT), limit=LIMIT))),
        under_comity(2, tmp_path),
    )
    assert ours == theirs


ARGUMENTS = """
import sys
from pathlib import Path
import mlx.core as mx
import beside
assert sys.argv[1:] == ["-x", "y"], sys.argv
assert __name__ == "__main__" and Path(sys.argv[0]).name == __import__("os").environ["NAME"], sys.argv
print(mx.distributed.init().size(), beside.HERE, end=";")
sys.exit(3)
"""


def test_scripts_and_modules_are_run_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ARGUMENTS)
    (tmp_path / "beside.py").write_text("HERE = 'here'")
    script = [sys.executable, "-m", "comity.mlx", str(tmp_path / "script.py"), "-x", "y"]
    done = run(script, NAME="script.py")
    assert (done.returncode, done.stdout) == (3, "1 here;"), done
    module = [sys.executable, "-m", "comity.mlx", "-m", "script", "-x", "y"]
    done = run(module, NAME="script.py", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "1 here;"), done
    for wrong in ([], ["-x"], [str(tmp_path / "none.py")]):
        done = run([sys.executable, "-m", "comity.mlx", *wrong])
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done


STEP = """
import json
from functools import partial
import mlx.core as mx
from mlx import nn, optimizers

group = mx.distributed.init()
mx.random.seed(1)
model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 4))
optimizer = optimizers.Adam(0.1)
state = [model.state, optimizer.state, mx.random.state]
value_and_grad = nn.value_and_grad(model, lambda m, x, y: ((m(x) - y) ** 2).mean())

def step(x, y):
    optimizer.state["seen"] = x.sum()
    x = x + mx.random.normal(x.shape)
    value, grads = value_and_grad(model, x, y)
    optimizer.update(model, nn.average_gradients(grads))
    return value

inner = mx.compile(lambda x: x * 2 + 1)
fast = partial(mx.compile, inputs=state, outputs=state)(step) if COMPILED else step
for i in range(4):
    x = inner(mx.random.normal((5, 8), key=mx.random.key(10 * i + group.rank())))
    fast(x, mx.ones((5, 4)))
    mx.eval(state)
if group.rank() == 0:
    print("found " + json.dumps({"w": model.layers[2].weight.tolist(), "size": group.size()}))
"""


@pytest.mark.parametrize("n", [1, 2])
def test_a_compiled_step_that_averages_gradients(n: int, tmp_path: Path) -> None:
    results = []
    for compiled in (True, False):
        script = tmp_path / f"{compiled}.py"
        script.write_text(f"COMPILED = {compiled}\n{STEP}")
        done = job(n, "-m", "comity.mlx", str(script), limit=LIMIT)
        results.append(_flat(found(succeed(done))["w"]))
        said = [line for line in done.stderr.splitlines() if "mx.compile" in line]
        # One line of each rank, and none where nothing is sent.
        assert len(said) == (n if compiled and n > 1 else 0), done.stderr
        assert all("step communicates" in line for line in said), said
    assert results[0] == pytest.approx(results[1], rel=1e-5)


def _flat(value: object) -> list[float]:
    return [x for v in value for x in _flat(v)] if isinstance(value, list) else [value]
