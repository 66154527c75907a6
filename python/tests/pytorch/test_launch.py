"""Programs as users start them: `comity launch` and torchrun, the example, and the ways by which torch finds the backend."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import launch_bodies
import pytest
import torch
from ports import free_ports
from torch_ranks import Ranks

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "ddp_train.py"
COMPARE = ROOT / "examples" / "benchmark_throughput.py"
SCRIPTS = Path(sys.executable).parent
NEW = tuple(int(x) for x in torch.__version__.split(".")[:2]) >= (2, 14)

ASK = """
import sys
{imports}
import torch.distributed as dist
for backend in {backends}:
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    import torch
    t = torch.ones(2)
    dist.all_reduce(t)
    print(dist.get_backend(), t.tolist())
    dist.destroy_process_group()
"""


def run(*command: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_under_comity_launch(tmp_path: Path) -> None:
    stats = tmp_path / "two.json"
    launch = [sys.executable, "-m", "comity._cli", "launch", "-n", "2", "--", sys.executable]
    run(*launch, EXAMPLE, "--steps", "60", "--save-stats", stats)
    two = json.loads(stats.read_text())
    assert two["right"] > 0.9, two["right"]
    assert two["metrics"]["errors"] == 0
    assert two["metrics"]["ops"]["all_reduce"]["total_ops"] >= 60


def test_the_example_under_torchrun_and_alone_agree(tmp_path: Path, ranks: Ranks) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    ranks.run(
        1, launch_bodies.script, EXAMPLE, ["--baseline", "--steps", "30", "--save-stats", one], init=None
    )
    torchrun = [SCRIPTS / "torchrun", "--nproc-per-node", "2", "--master-port", free_ports(1)[0]]
    run(*torchrun, EXAMPLE, "--steps", "30", "--save-stats", two)
    alone, both = json.loads(one.read_text()), json.loads(two.read_text())
    # The same batches: rank 0 sees one half of each, so losses are close, and what was learned is the same.
    assert abs(alone["right"] - both["right"]) < 0.02, (alone["right"], both["right"])
    # The picture needs matplotlib, which the tests do without.
    lines = run(sys.executable, COMPARE, one, two).splitlines()
    found = [
        re.fullmatch(r"(.+): (\d+) samples/s, ([\d.]+) ms a step, loss ([\d.]+)", line) for line in lines
    ]
    assert [f and f[1] for f in found] == ["one process", "comity, 2 ranks"], lines
    for f, kept in zip(found, (alone, both), strict=True):
        step = statistics.median(kept["times"][5:])
        assert float(f[2]) == pytest.approx(kept["batch"] / step, abs=1)
        assert float(f[3]) == pytest.approx(step * 1e3, abs=0.01)
        assert float(f[4]) == pytest.approx(kept["losses"][-1], abs=0.001)


@pytest.mark.parametrize(
    "imports", ["import comity", "import torch; import comity", "import comity.torch", "import comity, torch"]
)
def test_import_comity_is_enough(imports: str) -> None:
    backends = ["comity", "cpu:comity,cuda:gloo"] if NEW and "torch;" in imports else ["comity"]
    out = run(sys.executable, "-c", ASK.format(imports=imports, backends=backends))
    assert out.count("[1.0, 1.0]") == len(backends), out


def test_importing_comity_does_not_import_torch() -> None:
    run(sys.executable, "-c", "import comity, sys; sys.exit('torch' in sys.modules)")


def test_torch_finds_the_backend_by_itself() -> None:
    """Without `import comity`: the package has an entry point that torch calls. No import hook stands in `sys.meta_path`."""
    assert "[1.0, 1.0]" in run(sys.executable, "-c", ASK.format(imports="", backends=["comity"]))
    ask = "import sys; before = list(sys.meta_path); import comity; sys.exit(sys.meta_path != before)"
    run(sys.executable, "-c", ask)


def test_versions() -> None:
    from comity.errors import UnavailableError
    from comity.torch.versions import choose

    assert [choose(v) for v in ("2.11.0", "2.13.1+cpu", "2.14.0", "2.15.0+cu132", "3.0.0a0")] == [
        "group", "group", "backend", "backend", "backend",
    ]  # fmt: skip
    for old in ("2.10.0", "1.13.1+cu117"):
        with pytest.raises(UnavailableError, match=r"needs torch 2\.11 or newer, and this is " + old[:3]):
            choose(old)


#: Backends of a group's devices, whether the group has a device, and what comes of it: Comity's own group, torch's with Comity's
#: backend for some devices, or a refusal that names the order in which torch can.
STRINGS = """
import sys
import torch, torch.distributed as dist
for backend, bound, expected in {cases}:
    device = {{"device_id": torch.device("cpu:0")}} if bound else {{}}
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **device)
    for group in (dist.group.WORLD, dist.new_group([0])):
        t, said = torch.ones(2), "ours" if type(group).__module__.startswith("comity") else "theirs"
        devices = sorted(d.type for d in group._device_types)
        try:
            dist.all_reduce(t, group=group)
        except Exception as e:
            said = str(e)
        assert expected in said, (backend, bound, said)
        assert len(devices) == 1 + ("cuda" in backend or ":" not in backend), (backend, devices)
    dist.destroy_process_group()
"""
CASES = [
    ("comity", False, "ours"),
    ("comity", True, "ours"),
    ("cpu:comity", False, "ours"),
    ("cpu:comity,cuda:comity", False, "ours"),
    ("cpu:comity,cuda:gloo", False, "theirs"),
    ("cpu:gloo,cuda:comity", False, "theirs"),
    ("cuda:comity,cpu:gloo", False, "theirs"),
    ("cuda:gloo,cpu:comity", True, "theirs"),
    ("cpu:comity,cuda:gloo", True, "name comity last, as in 'cuda:gloo,cpu:comity'"),
]


@pytest.mark.skipif(not NEW or sys.platform == "darwin", reason="other torch, or other devices")
def test_groups_of_several_backends() -> None:
    run(sys.executable, "-c", STRINGS.format(cases=CASES))


OLD = """
import torch, torch.distributed as dist
from comity.errors import ConfigError
from comity.torch import process_group, registration, versions
registration.choose, versions.VERSION = lambda _: "group", (2, 13)
for backend in ("comity", "cpu:comity", "cpu:comity,cuda:nccl"):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    assert type(dist.group.WORLD) is process_group.ProcessGroup
    try:
        dist.all_reduce(torch.ones(2))
    except ConfigError as e:
        assert "cannot combine comity with nccl" in str(e), e
        print("refused")
    dist.destroy_process_group()
"""


def test_groups_of_several_backends_where_torch_cannot() -> None:
    """The group that older versions of torch get: its first call is refused."""
    assert run(sys.executable, "-c", OLD) == "refused\n"


#: Another world_size than the launcher's. Torch says nothing while rank 0 waits in its store for ranks that nobody starts.
SIZES = """
import os
from datetime import timedelta
import torch.distributed as dist
import comity
from comity.torch import meeting
meeting._PATIENCE = 0.2
os.environ.update(COMITY_SIZE="3", WORLD_SIZE="3")
for rank, size in ((2, 2), (1, 4), (2, 4), (1, 3)):
    try:
        limit = timedelta(seconds=1)
        dist.init_process_group("comity", store=dist.HashStore(), rank=rank, world_size=size, timeout=limit)
    except (comity.ConfigError, comity.JoinError) as e:
        print(e, flush=True)
"""


def test_another_world_size_than_the_launchers_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIZES], capture_output=True, text=True, timeout=180, check=True
    )
    refused, *_ = done.stdout.splitlines()
    started = (
        "the program gave torch world_size={}, and `comity launch` started 3 ranks: leave world_size out"
    )
    assert f"rank is 2, but {started.format(2)}" in refused, done
    waits = [line for line in done.stderr.splitlines() if "has waited" in line]
    # Rank 2 leaves it to rank 1.
    assert len(waits) == 2 and all(re.search(r"rank 1 has waited \d+ s for rank 0", w) for w in waits), done
    assert started.format(4) in waits[0] and "it may prepare" in waits[1], done


def test_nobody_looks_at_the_callers_frames() -> None:
    for file in (ROOT / "python" / "comity").rglob("*.py"):
        assert not re.search(r"currentframe|_getframe|\.f_back|inspect\.stack", file.read_text()), file
