"""Counts what a suite of somebody else's says of two libraries, and holds it against a list of what is known.

A suite is run for a reference (gloo, MLX's ring) and for Comity. Every test that the reference passes must pass with Comity, apart from
those in a list (`*_known.toml`). An entry of the list names a test, how many ranks, what kind of failure it is, a sentence that must be
found in the failure, and the reason. The list cannot go stale: an entry whose test passes now is an error, and so is one whose test fails
with other words.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
#: What an entry of the list is: the test is of something that the framework does, or is asked to refuse, for its own library only; Comity
#: has a defect that is known.
KINDS = ("framework", "open")
#: How a line of a traceback begins that says what was raised.
_RAISED = re.compile(r"(?:[a-z_][\w]*\.)*[A-Z]\w*: ")
#: Where torch begins to tell of another rank.
_RANK = re.compile(r"(?:RuntimeError: )?Process \d+ exited with")


@dataclass(frozen=True)
class Outcome:
    """What came of one test."""

    state: str
    seconds: float = 0.0
    #: The failure as it was told, or why it was skipped.
    text: str = ""

    def sentence(self) -> str:
        """The failure in one line: what the first rank that failed raised last, or else the first line."""
        lines, ranks, raised = self.text.splitlines() or ["it says nothing"], 0, ""
        if not lines[0].startswith("Traceback"):
            return lines[0]
        for line in lines:
            ranks += _RANK.match(line) is not None
            if ranks > 1:
                break
            if _RAISED.match(line) and not _RANK.match(line):
                raised = line
        return raised or lines[-1]


Outcomes = dict[str, Outcome]


@dataclass(frozen=True)
class Known:
    """An entry of the list."""

    test: str
    ranks: tuple[int, ...]
    kind: str
    #: Stands in the failure, on all these numbers of ranks.
    sentence: str
    reason: str


@dataclass(frozen=True)
class Expected:
    """A list, and how many tests the reference is known to pass with this version of the suite."""

    version: str
    passes: dict[int, int]
    known: tuple[Known, ...]
    #: How many tests Comity passes at least, where the reference passes fewer.
    ours: dict[int, int] = field(default_factory=dict)
    #: Which tests these are, where they do not come with that version.
    tests: str = ""

    @classmethod
    def read(cls, path: Path) -> Expected:
        """The list in a file; a mistake in it is told with the file's name."""
        try:
            table = tomllib.loads(path.read_text())
            known = tuple(
                Known(k["test"], tuple(k["ranks"]), k["kind"], k["sentence"], k["reason"])
                for k in table.get("known", [])
            )
            passes, ours = (
                {int(n): int(count) for n, count in table.get(of, {}).items()} for of in ("passes", "ours")
            )
            expected = cls(table["version"], passes, known, ours, table.get("tests", ""))
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise SystemExit(f"{path}: {type(e).__name__}: {e}") from e
        wrong = [
            k.test for k in known if k.kind not in KINDS or not k.sentence or not k.reason or not k.ranks
        ]
        if wrong:
            raise SystemExit(
                f"{path}: {', '.join(wrong)}: the kind is one of {KINDS}, and the rest is not empty"
            )
        return expected


@dataclass
class Verdict:
    """The comparison on so many ranks."""

    suite: str
    version: str
    ranks: int
    reference: str
    theirs: Outcomes
    ours: Outcomes
    seconds: float
    only_reference: list[str] = field(default_factory=list)
    excused: list[Known] = field(default_factory=list)
    #: What makes the run fail, each in one sentence.
    wrong: list[str] = field(default_factory=list)

    def judge(self, expected: Expected, whole: bool) -> None:
        """Compare; `whole` says that no tests were left out by a pattern, so that there must be as many as ever."""
        self.only_reference = sorted(
            name for name, o in self.theirs.items() if o.state == PASSED and not self._passes(name)
        )
        if not self.theirs:
            self.wrong.append("no test was run")
        known = {k.test: k for k in expected.known if self.ranks in k.ranks}
        for name in self.only_reference:
            ours = self.ours.get(name, Outcome(FAILED, text="it was not run"))
            entry = known.get(name)
            if entry is None:
                self.wrong.append(f"{name}: {self.reference} passes it, comity {_fails(ours)}")
            elif _flat(entry.sentence) not in _flat(ours.text):
                self.wrong.append(f"{name}: the list says {entry.sentence!r}, but it {_fails(ours)}")
            else:
                self.excused.append(entry)
        for name in known:
            if name in self.theirs and self._passes(name):
                self.wrong.append(f"{name} passes now on {self.ranks} ranks: remove it from the list")
            elif name not in self.theirs and whole:
                self.wrong.append(
                    f"{name} is in the list, but no test has that name: remove it from the list"
                )
            elif name in self.theirs and self.theirs[name].state != PASSED:
                why = _fails(self.theirs[name])
                self.wrong.append(
                    f"{name} is in the list, but {self.reference} does not pass it either: it {why}"
                )
        if whole:
            self._count(expected)

    def _passes(self, name: str) -> bool:
        return name in self.ours and self.ours[name].state == PASSED

    def _count(self, expected: Expected) -> None:
        wanted, found = expected.passes.get(self.ranks), counts(self.theirs)[PASSED]
        if wanted is None or expected.version != self.version:
            self.wrong.append(
                f"the list is for version {expected.version} on {sorted(expected.passes)} ranks, "
                f"not for {self.version} on {self.ranks}"
            )
        elif found != wanted:
            self.wrong.append(f"{self.reference} passes {found} tests and not {wanted} as the list says")
        least, found = expected.ours.get(self.ranks, 0), counts(self.ours)[PASSED]
        if found < least:
            self.wrong.append(f"comity passes {found} tests and not {least} as the list says")

    def show(self) -> None:
        """The table, what is wrong, and the closing line for programs."""
        both = {self.reference: counts(self.theirs), "comity": counts(self.ours)}
        print(f"\n{self.suite} {self.version}, {self.ranks} ranks, {self.seconds:.0f} s")
        print(f"  {'':8} {PASSED:>7} {FAILED:>7} {SKIPPED:>7}")
        for name, c in both.items():
            print(f"  {name:8} {c[PASSED]:7} {c[FAILED]:7} {c[SKIPPED]:7}")
        for entry in self.excused:
            print(f"  known ({entry.kind}): {entry.test}: {entry.reason}")
        for line in self.wrong:
            print(f"  WRONG: {line}")
        line: dict[str, Any] = {"suite": self.suite, "version": self.version, "ranks": self.ranks, **both}
        line |= {
            f"only_{self.reference}_passes": self.only_reference,
            "known": len(self.excused),
            "wrong": len(self.wrong),
            "seconds": round(self.seconds),
        }
        print(json.dumps(line))
        counted = f"{self.reference} passes {both[self.reference][PASSED]}, comity {both['comity'][PASSED]}"
        print(f"=> {self.ranks} ranks: {counted}, {len(self.excused)} known", flush=True)

    def full(self) -> dict[str, Any]:
        """All of it, with every test and every failure."""
        return {
            "suite": self.suite,
            "version": self.version,
            "ranks": self.ranks,
            "wrong": self.wrong,
            self.reference: table(self.theirs),
            "comity": table(self.ours),
        }


def counts(outcomes: Outcomes) -> dict[str, int]:
    """How many tests passed, failed, and were skipped."""
    return {s: sum(o.state == s for o in outcomes.values()) for s in (PASSED, FAILED, SKIPPED)}


def table(outcomes: Outcomes) -> dict[str, dict[str, Any]]:
    """The tests by name, for a file."""
    return {
        name: {"state": o.state, "seconds": round(o.seconds, 1), "text": o.text}
        for name, o in sorted(outcomes.items())
    }


def _fails(outcome: Outcome) -> str:
    return f"skips it: {outcome.text}" if outcome.state == SKIPPED else f"fails: {outcome.sentence()}"


def _flat(text: str) -> str:
    """Without line breaks, which depend on where a message is printed."""
    return " ".join(text.split())
