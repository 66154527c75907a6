"""Check what the builder of the book does not: what the documents name, and their examples.

    python docs/make/check.py names         links and paths of all documents, the pages that are written from other files
    python docs/make/check.py examples      run the examples in Python that are marked, with one rank; needs the package

A block of code in Python runs if the line before it is `<!-- run -->`. The blocks of a page run in their order, as one program. A page
runs under `comity launch -n 1`, so that it finds what a rank finds.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import reference
import settings

ROOT = Path(__file__).parents[2]
#: A list of decisions is read whole, or not at all.
DECISIONS, MOST_WORDS = ROOT / "docs" / "decisions.md", 4000
#: Documents outside the book, which link into it.
OUTSIDE = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
#: Where a path of the repository begins. Other words in backticks are not looked for.
FOLDERS = (
    "crates",
    "python",
    "docs",
    "bench",
    "examples",
    "tools",
    "xtask",
    "fuzz",
    "data",
    "swift",
    "swift-mlx",
)
#: Seconds that a page's examples may take.
LIMIT = 60
MARK = "<!-- run -->"

FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def documents() -> list[Path]:
    return [ROOT / name for name in OUTSIDE] + sorted((ROOT / "docs").rglob("*.md"))


def anchors(text: str) -> set[str]:
    """What the headings of a document are called in links, as GitHub and the builder call them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    plain = (re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h)) for h in heads)
    return {re.sub(r"\s", "-", p.strip().lower()) for p in plain}


def links(page: Path, text: str) -> list[str]:
    wrong = []
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists():
            wrong.append(f"links to {target}, which is not there")
        elif anchor and there.suffix == ".md" and anchor not in anchors(there.read_text()):
            wrong.append(f"links to {target}, which has no such heading")
    return wrong


def paths(text: str) -> list[str]:
    """Paths of the repository in backticks that lead nowhere. `a/{b,c}` stands for two; `x:12` for a line."""
    wrong = []
    for quoted in QUOTED.findall(FENCE.sub("", text)):
        word = quoted.split(":")[0].rstrip("/")
        if not word.startswith(tuple(f"{f}/" for f in FOLDERS)) or not re.fullmatch(r"[\w./{},*-]+", word):
            continue
        found = re.fullmatch(r"(.*)\{(.*)\}(.*)", word)
        each = [found[1] + part + found[3] for part in found[2].split(",")] if found else [word]
        wrong += [f"names `{p}`, which is not there" for p in each if not list(ROOT.glob(p))]
    return wrong


def languages(text: str) -> list[str]:
    """rustdoc takes a block without a language for Rust, and so an indented one."""
    wrong = ["has a block of code without a language" for lang, _ in FENCE.findall(text) if not lang]
    outside = FENCE.sub("", text)
    if re.search(r"(\A|\n)\n( {4}|\t)\S", outside) and not re.search(r"^\s*([-*]|\d+\.) ", outside, re.M):
        wrong.append("has an indented block of code; use a fence with a language")
    return wrong


def variables() -> list[str]:
    """Variables that the code reads and its table lacks, and the other way round; settings without a keyword in Python."""
    sources = [*(ROOT / "crates").glob("*/src/**/*.rs"), *(ROOT / "python" / "comity").rglob("*.py")]
    text = "".join(p.read_text() for p in sources if "tests" not in p.parts and p != settings.TABLE)
    read = set(re.findall(r'"(COMITY_[A-Z_]+)"', text))
    read = {name for name in read if not name.startswith(("COMITY_TEST_", "COMITY_SIM_", "COMITY_TRIALS"))}
    rows = [row for row in settings.variables() if row["name"].startswith("COMITY_")]
    listed = {row["name"] for row in rows}
    public = {row["name"] for row in rows if row["topic"] not in ("Libraries", "Launcher", "Internal")}
    keywords = settings.keywords()
    lacking = public - settings.WITHOUT_KEYWORD - keywords
    table = settings.TABLE.relative_to(ROOT)
    return (
        [f"{table} lacks {n}" for n in sorted(read - listed)]
        + [f"{table} has {n}, which nothing reads" for n in sorted(listed - read)]
        + [
            f"{table} and the keywords of comity.init do not agree about {n}"
            for n in sorted(lacking | (keywords - listed))
        ]
    )


def names() -> list[str]:
    wrong = variables()
    for page in documents():
        text = page.read_text()
        found = links(page, text) + paths(text) + languages(text)
        wrong += [f"{page.relative_to(ROOT)} {what}" for what in found]
    for made, wanted in [(reference.PAGE, reference.page()), (settings.PAGE, settings.page())]:
        if not made.exists() or made.read_text() != wanted:
            wrong.append(f"{made.relative_to(ROOT)} is not current: see docs/make")
    words = len(DECISIONS.read_text().split())
    if words > MOST_WORDS:
        wrong.append(
            f"{DECISIONS.relative_to(ROOT)} has {words} words, more than {MOST_WORDS}: keep what somebody may want to change"
        )
    return wrong


def program(text: str) -> tuple[str, int]:
    """The marked blocks of a page as a program, and how many they are."""
    blocks = re.findall(rf"^{re.escape(MARK)}\n+```python\n(.*?)^```$", text, re.M | re.S)
    return "\n".join(blocks), len(blocks)


def run(page: Path, folder: Path) -> tuple[int, str | None]:
    """How many examples there were, and what went wrong."""
    code, count = program(page.read_text())
    if not count:
        return 0, None
    name = str(page.relative_to(ROOT))
    file = folder / (name.replace("/", "-") + ".py")
    file.write_text(code)
    command = [sys.executable, "-m", "comity", "launch", "-n", "1", "--timeout", str(LIMIT), "--"]
    done = subprocess.run(
        [*command, sys.executable, str(file)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT + 30,
        check=False,
    )
    why = f"{name}: its examples ended with {done.returncode}:\n{done.stdout}"
    return count, why if done.returncode else None


def examples() -> tuple[int, list[str]]:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda page: run(page, Path(folder)), documents()))
    return sum(count for count, _ in results), [why for _, why in results if why]


def main() -> None:
    parser = argparse.ArgumentParser(description="Check what the builder of the book does not.")
    parser.add_argument("what", choices=["names", "examples"])
    what = parser.parse_args().what
    if what == "names":
        wrong, note = names(), f"{len(documents())} documents"
    else:
        count, wrong = examples()
        note = f"{count} examples"
        if not count:
            wrong = ["no example is marked"]
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit(1)
    print(note)


if __name__ == "__main__":
    main()
