"""How the suites of others are compared: what makes a run of `python/suites` fail."""

import sys
from pathlib import Path

import pytest

SUITES = Path(__file__).parents[1] / "suites"
sys.path.insert(0, str(SUITES))

from compare import FAILED, PASSED, SKIPPED, Expected, Known, Outcome, Verdict  # noqa: E402

GOOD, LEFT_OUT = Outcome(PASSED), Outcome(SKIPPED, text="not here")
BAD = Outcome(FAILED, text="Traceback ...:\nValueError: it is\n  broken")


def wrong(theirs: dict, ours: dict, *known: Known, passes: int | None = None, least: int = 0) -> list[str]:
    """What is wrong with such a run on 2 ranks."""
    expected = Expected("1.0", {2: passes if passes is not None else len(theirs)}, known, {2: least})
    verdict = Verdict("torch", "1.0", 2, "gloo", theirs, ours, 1.0)
    verdict.judge(expected, whole=True)
    return verdict.wrong


def entry(test: str = "a", sentence: str = "it is broken", ranks: tuple[int, ...] = (2,)) -> Known:
    return Known(test, ranks, "open", sentence, "it is so")


def test_what_the_other_passes_must_pass() -> None:
    assert wrong({"a": GOOD, "b": GOOD}, {"a": GOOD, "b": GOOD}) == []
    assert wrong({"a": GOOD}, {"a": BAD}) == ["a: gloo passes it, comity fails: ValueError: it is"]
    assert wrong({"a": GOOD}, {"a": LEFT_OUT}) == ["a: gloo passes it, comity skips it: not here"]
    assert wrong({"a": GOOD}, {}) == ["a: gloo passes it, comity fails: it was not run"]
    assert wrong({"a": BAD}, {"a": BAD}, passes=0) == []


def test_the_list_excuses_only_what_it_says() -> None:
    assert wrong({"a": GOOD}, {"a": BAD}, entry()) == []
    assert len(wrong({"a": GOOD}, {"a": BAD}, entry(sentence="it is lost"))) == 1
    assert len(wrong({"a": GOOD}, {"a": BAD}, entry(ranks=(3,)))) == 1


def test_the_list_cannot_go_stale() -> None:
    assert wrong({"a": GOOD}, {"a": GOOD}, entry()) == ["a passes now on 2 ranks: remove it from the list"]
    assert len(wrong({"a": GOOD}, {"a": GOOD}, entry("gone"))) == 1
    assert len(wrong({"a": BAD}, {"a": BAD}, entry(), passes=0)) == 1


def test_tests_are_counted() -> None:
    assert wrong({"a": GOOD}, {"a": GOOD}, passes=2) == ["gloo passes 1 tests and not 2 as the list says"]
    assert wrong({"a": BAD}, {"a": BAD}, passes=0, least=1) == [
        "comity passes 0 tests and not 1 as the list says"
    ]


def test_lists_can_be_read(tmp_path: Path) -> None:
    assert Expected.read(SUITES / "torch_known.toml").passes[2] > 0
    name = "mlx_known.toml"
    assert Expected.read(SUITES / name).known
    bad = tmp_path / name
    bad.write_text((SUITES / name).read_text().replace('kind = "framework"', 'kind = "other"'))
    with pytest.raises(SystemExit, match="the kind is one of"):
        Expected.read(bad)
