"""The command `comity` of the package, where an interpreter runs it."""

import sys
from pathlib import Path

import pytest
from conftest import SCRIPTS, run


@pytest.mark.parametrize("command", [[str(SCRIPTS / "comity")], [sys.executable, "-m", "comity"]])
def test_tune_starts_jobs_of_the_same_command(command: list[str], tmp_path: Path) -> None:
    home = tmp_path / "config"
    only = ["--at-ranks", "2", "--at-sizes", "64,65536", "--within", "0.1"]
    done = run([*command, "bench", "--tune", *only], XDG_CONFIG_HOME=str(home))
    assert done.returncode == 0, done.stderr
    [file] = (home / "comity").iterdir()
    assert str(file) in done.stdout, done.stdout


def test_tune_is_refused_under_a_launcher(tmp_path: Path) -> None:
    job = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, "-m", "comity", "bench", "--tune"]
    done = run(command, XDG_CONFIG_HOME=str(tmp_path), MASTER_PORT="1", **job)
    assert done.returncode == 2, done.stderr
    assert "run them without a launcher" in done.stderr
