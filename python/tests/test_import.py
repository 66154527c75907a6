"""The package by itself: how fast it is imported and what with, its errors, and what it refuses to begin."""

import pickle
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from conftest import SCRIPTS, run, succeed
from ports import free_ports

import comity
from comity import errors

# What is promised; the best of a few, in CPU time, because the machine may be busy.
PROMISED = 0.05

MEASURE = """
import sys, time
start = time.process_time()
import comity
took = time.process_time() - start
frameworks = {"numpy", "torch", "mlx", "jax", "ml_dtypes"} & {m.partition(".")[0] for m in sys.modules}
assert not frameworks, frameworks
files = {m for m in sys.modules if m.startswith("comity.arrays.")} - {"comity.arrays.block"}
assert not files, files
print(took)
"""


def test_import_is_quick_and_imports_no_framework() -> None:
    took = [float(succeed(run([sys.executable, "-c", MEASURE]))) for _ in range(10)]
    assert min(took) < PROMISED, took


def test_a_package_without_its_compiled_part_says_what_to_do(tmp_path: Path) -> None:
    package = Path(str(files("comity")))
    shutil.copytree(package, tmp_path / "comity", ignore=shutil.ignore_patterns("_core.*so"))
    ended = run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import comity"]
    )
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert (
        last.startswith("ImportError: the compiled part of comity is not there") and "pip install" in last
    ), last


def test_typed() -> None:
    assert files("comity").joinpath("py.typed").is_file()
    assert files("comity").joinpath("_core.pyi").is_file()


def test_console_script() -> None:
    comity_command = str(SCRIPTS / "comity")
    assert comity.__version__ in succeed(run([comity_command, "--version"]))
    assert "launch" in succeed(run([comity_command, "--help"]))
    assert comity.__version__ in succeed(run([sys.executable, "-m", "comity", "--version"]))
    assert run([comity_command, "no-such-command"]).returncode == 2
    # The check of the command itself, over this package's library.
    check = [comity_command, "check", "--quick", "--dtypes", "f32"]
    assert succeed(run([comity_command, "launch", "-n", "2", "--", *check]))


def test_demonstration_needs_no_framework() -> None:
    blocked = (
        "import runpy, sys; sys.modules['numpy'] = None; runpy.run_module('comity.demo', run_name='__main__')"
    )
    said = succeed(run([str(SCRIPTS / "comity"), "launch", "-n", "4", "--", sys.executable, "-c", blocked]))
    assert "[0] ranks 4 on 1 host, over shm" in said
    assert "[0] every rank has the same plane, to the last bit" in said


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_pickle(name: str) -> None:
    cls = getattr(errors, name)
    assert getattr(comity, name) is cls
    e = cls("rank 2 was lost", 2, "barrier #3", "closed its connections")
    back = pickle.loads(pickle.dumps(e))
    assert type(back) is cls
    assert isinstance(back, comity.Error)
    assert isinstance(back, RuntimeError)
    assert (str(back), back.rank, back.call, back.cause) == (
        "rank 2 was lost",
        2,
        "barrier #3",
        "closed its connections",
    )
    assert str(cls("only words")) == "only words"
    assert cls("only words").rank is None


def test_what_only_some_errors_say_pickles() -> None:
    e = pickle.loads(
        pickle.dumps(errors.JoinError("ranks 1 and 3 are missing", 1, None, "missing", ranks=[1, 3]))
    )
    assert (e.rank, e.ranks, e.cause) == (1, (1, 3), "missing")
    assert errors.JoinError("only words").ranks == ()
    e = pickle.loads(
        pickle.dumps(errors.ConfigError("no", file="f", line=2, column=3, key="COMITY_RANK", value="x"))
    )
    assert (e.file, e.line, e.column, e.key, e.value) == ("f", 2, 3, "COMITY_RANK", "x")


WRONG = """
import comity
try:
    comity.init(rank=0, size=2, insecure=True, store="127.0.0.1:1", links="telepathy")
except comity.ConfigError as e:
    assert (e.key, e.value, e.file) == ("COMITY_LINKS", "telepathy", None), vars(e)
open("hosts.json", "w").write('[["a:1"],\\n["b:1"')
import os
os.environ |= {"MLX_RANK": "0", "MLX_HOSTFILE": "hosts.json"}
try:
    comity.init()
except comity.ConfigError as e:
    assert (e.file, e.line, e.column) == ("hosts.json", 2, 6), vars(e)
"""


def test_what_is_wrong_with_a_configuration_has_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    succeed(run([sys.executable, "-c", WRONG]))


def test_families() -> None:
    assert issubclass(comity.TimeoutError, TimeoutError)
    assert "TimeoutError" not in comity.__all__
    assert issubclass(comity.MisuseError, ValueError)
    assert issubclass(comity.ConfigError, ValueError)


ALONE = """
import comity
g = comity.init()
assert (g.rank, g.size) == (0, 1)
assert comity.all_reduce(3) == 3
assert comity.is_available() and comity.is_available("ring") and not comity.is_available("nccl")
for words, call in {
    "in no job": lambda: comity.init(strict=True),
    "no backend": lambda: comity.init("smoke"),
    "no setting": lambda: comity.init(colour=3),
    "64 hexadecimal": lambda: comity.init(key="abc"),
    "COMITY_TIMEOUT": lambda: comity.init(rank=0, size=1, timeout=-1),
    "COMITY_RANK": lambda: comity.init(rank=3, size=2, store="127.0.0.1:1"),
}.items():
    try:
        call()
    except comity.ConfigError as e:
        assert words in str(e), e
    else:
        raise AssertionError(words)
try:
    comity.init("nccl")
except comity.UnavailableError as e:
    assert "NVIDIA" in str(e)
assert comity.init(rank=0, size=1, timeout=7).timeout == 7
g.close()
assert comity.init() is not g
"""


def test_without_a_launcher() -> None:
    succeed(run([sys.executable, "-c", ALONE]))


def test_a_rank_that_does_not_come_is_named() -> None:
    code = """
import comity
try:
    comity.init(join_timeout=1)
except comity.JoinError as e:
    assert (e.ranks, e.rank, e.cause) == ((1,), 1, "missing"), vars(e)
    raise
"""
    env = {"COMITY_INSECURE": "1"}
    env |= {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    done = run([sys.executable, "-c", code], **env)
    assert done.returncode == 1
    assert "comity.errors.JoinError" in done.stderr
    assert "rank 1" in done.stderr
