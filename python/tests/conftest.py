"""Jobs of real processes for the tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sampling import said

HERE = Path(__file__).parent
SCRIPTS = Path(sys.executable).parent

#: What a job or a shell around the tests may say; `comity launch` sets some of it for its ranks where it is unset.
FOREIGN = ("COMITY_", "MLX_", "OMPI_", "PMI_", "OMP_", "MKL_", "OPENBLAS_", "RAYON_", "PYTHONUNBUFFERED")

Launch = Callable[..., subprocess.CompletedProcess[str]]


def run(command: list[str], limit: float = 300, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, at most for `limit` seconds; then it is killed with all it started."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    outside |= {"PYTHONPATH": str(HERE), "JAX_PLATFORMS": "cpu"} | env
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=outside,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{command} did not end within {limit} s\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def job(n: int, *command: str, limit: float = 300, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run `python ...` as `n` ranks."""
    launch = [str(SCRIPTS / "comity"), "launch", "-n", str(n), "--", sys.executable]
    return run([*launch, *command], limit, **env)


def succeed(done: "subprocess.CompletedProcess[str]") -> str:
    """What a job that went well wrote."""
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(said())
