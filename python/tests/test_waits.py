"""Waits of the package without a limit: `# WAIT: why`, on the line or right above it, says what ends each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "comity"
#: Methods that wait without a limit when they get none.
WAITING = {"wait", "acquire", "join", "get", "result"}


def is_endless(node: ast.AST) -> bool:
    if not (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WAITING
    ):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    endless = [
        value for value in given if isinstance(value, ast.Constant) and repr(value.value) in ("None", "True")
    ]
    return len(given) < 2 and endless == given


def unexplained(text: str) -> list[int]:
    """Lines of such waits that nothing is said of."""
    lines = ["", *text.splitlines()]

    def is_said(at: int) -> bool:
        above = lines[at - 1].strip()
        said = [lines[at], above if above.startswith("#") else ""]
        return any(line.partition("# WAIT: ")[2].strip() for line in said)

    waits = [node for node in ast.walk(ast.parse(text)) if is_endless(node)]
    return [node.func.end_lineno for node in waits if not is_said(node.func.end_lineno)]


def test_waits_say_what_ends_them() -> None:
    files = list(PACKAGE.rglob("*.py"))
    assert len(files) > 20
    assert {str(f): lines for f in files if (lines := unexplained(f.read_text()))} == {}


@pytest.mark.parametrize(
    "wait", ["a.wait()", "a.wait(timeout=None)", "a.acquire(True)", "y = a.result()", "a('#'); b.join()"]
)
def test_one_that_does_not_is_found(wait: str) -> None:
    assert unexplained(f"'''\n\n'''\n{wait}") == [4]
    assert unexplained(f"# WAIT: a call with a deadline\n{wait}") == unexplained(f"{wait}  # WAIT: why") == []
    assert unexplained(f"x = 1  # WAIT: why\n{wait}  # WAIT: ") == [2]


@pytest.mark.parametrize(
    "good",
    [
        "a.wait(left)",
        "a.join(1.0)",
        "# a.wait()",
        "d.get('x')",
        "', '.join(names)",
        "f('b.wait()')",
        "wait()",
    ],
)
def test_others_need_no_reason(good: str) -> None:
    assert unexplained(good) == []
