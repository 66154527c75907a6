"""Scripts that are run by hand end with another code than 0 when they print a failure, or have tried nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import versions

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python" / "tests" / "pytorch"))
sys.path.insert(0, str(ROOT / "python" / "suites"))
sys.path.insert(0, str(ROOT / "bench"))


def run(main: object, monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """The exit code of a script's main function with these words."""
    monkeypatch.setattr(sys, "argv", ["script", *words])
    try:
        main()
    except SystemExit as e:
        return e.code
    return 0


def on_devices(monkeypatch: pytest.MonkeyPatch, codes: list[list[int]], *words: str) -> object:
    """The exit code of the tests on devices, whose ranks end with these codes in each run."""
    torch = pytest.importorskip("torch")
    import on_devices

    left = iter([code for run in codes for code in run])
    rank = SimpleNamespace(start=lambda: None, join=lambda: None)
    process = lambda **_: SimpleNamespace(**vars(rank), exitcode=next(left))  # noqa: E731
    context = SimpleNamespace(Process=process)
    monkeypatch.setattr(torch.multiprocessing, "get_context", lambda _: context)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a device")
    return run(on_devices.main, monkeypatch, "--ranks", str(len(codes[0])), *words)


def test_a_test_that_fails_on_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    # All bodies, then each fault.
    good = [[0, 0], [0, 0], [0, 0], [0, 0], [0, -9], [0, -9]]
    assert on_devices(monkeypatch, good) == 0
    assert on_devices(monkeypatch, [[0, 0]], "--only", "reductions") == 0
    assert on_devices(monkeypatch, [[0, 0], [0, -9]], "--only", "reductions,lost") == 0
    for i, run in enumerate(good):
        for wrong in ([1, run[1]], [0, 1]):
            codes = [*good[:i], wrong, *good[i + 1 :]]
            assert on_devices(monkeypatch, codes) != 0, codes
    for codes, words in (
        ([[0, 0]], ["--only", "lost"]),
        ([[0, -9]], ["--only", "reductions"]),
        ([[0, 0]], ["--only", "reduktions"]),
        ([[]], []),
    ):
        assert on_devices(monkeypatch, codes, *words) != 0, (codes, words)


@pytest.mark.parametrize("good", [True, False])
def test_a_version_of_torch_that_fails(monkeypatch: pytest.MonkeyPatch, good: bool) -> None:
    rows = iter([(good, "2.7.0", "1 failed"), (True, "2.8.0", "3 passed")])
    monkeypatch.setattr(versions, "row", lambda *_: next(rows))
    code = run(versions.main, monkeypatch, "--wheel", "x.whl", "2.7.0", "2.8.0")
    assert (code == 0) == good


def test_a_suite_that_runs_nothing() -> None:
    from compare import Expected, Verdict

    verdict = Verdict("torch", "1.0", 2, "gloo", {}, {}, 1.0)
    verdict.judge(Expected("1.0", {2: 0}, (), {2: 0}), whole=False)
    assert verdict.wrong


def test_a_case_of_faults_that_there_is_not() -> None:
    script = ROOT / "bench" / "faults" / "peers.py"
    done = subprocess.run(
        [sys.executable, str(script), "gloo", "kil"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "kil" in done.stderr


def test_a_benchmark_of_looking_that_saw_nothing() -> None:
    import top

    with pytest.raises(AssertionError, match="showed nothing"):
        top.once("false", subprocess.Popen(["sleep", "0.1"]))


@pytest.mark.parametrize("good", [True, False])
def test_a_stranger_that_fails(monkeypatch: pytest.MonkeyPatch, good: bool) -> None:
    import strangers

    # The end of gloo is told, and fails nothing.
    monkeypatch.setattr(strangers, "run", lambda _, backend: (good and backend == "comity", ""))
    monkeypatch.setattr(sys, "argv", ["strangers.py", "--only", "one_tensor"])
    assert strangers.main() == (0 if good else 1)
