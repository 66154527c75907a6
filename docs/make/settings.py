"""Write the tables of variables in `docs/settings.md` from the table in the code, `crates/comity-settings/src/settings/table.rs`.

    python docs/make/settings.py            write them
    python docs/make/settings.py --check    fail if they are not as this would write them

The table is read as text, so nothing has to be built. `comity info --settings` prints the same table.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "crates" / "comity-settings" / "src" / "settings" / "table.rs"
TOPICS = TABLE.with_name("variable.rs")
PAGE = ROOT / "docs" / "settings.md"
FUNCTIONS = ROOT / "python" / "comity" / "_functions.py"
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"

#: Where a page says more of a variable: in the column of its default.
SEE = {
    "COMITY_KEY_FILE": "[Security](security.md#the-key)",
    "COMITY_CONNECTIONS": "[when](#connections-and-send-threads)",
    "COMITY_DEVICES": "[RDMA](rdma.md)",
}

#: Variables that a program may set and that are no keyword of `init`: of its first argument, or of all groups of a process.
WITHOUT_KEYWORD = {
    "COMITY_BACKEND",
    "COMITY_ALGORITHM",
    "COMITY_COSTS",
    "COMITY_DEVICES",
    "COMITY_TORCH_COMPRESSION",
    "COMITY_VERBOSE",
}

TOPIC = re.compile(r"^    (\w+) \{\n(.*?)^    \}$", re.M | re.S)
ENTRY = re.compile(r'^        "(\w+)" \{\n(.*?)^        \}$', re.M | re.S)
FIELD = re.compile(r'^            (\w+): "((?:[^"\\]|\\.)*)",$', re.M | re.S)
TITLE = re.compile(r'^ +(\w+) => "(.*?)",$', re.M)
FIELDS = ["about", "default", "example"]


def _text(literal: str) -> str:
    """What a string of the code stands for: a backslash at a line's end joins it with the next."""
    return re.sub(r"\\(.)", r"\1", re.sub(r"\\\n\s*", "", literal))


def variables() -> list[dict[str, str]]:
    """The table's rows."""
    rows = []
    table = TABLE.read_text().partition("\nvariables! {\n")[2]
    for topic, entries in TOPIC.findall(table):
        for name, entry in ENTRY.findall(entries):
            row = {field: _text(text) for field, text in FIELD.findall(entry)}
            if list(row) != FIELDS:
                sys.exit(f"{TABLE.relative_to(ROOT)}: one field a line, in the order {FIELDS}, not\n{entry}")
            rows.append({"name": name, "topic": topic, **row})
    if not rows:
        sys.exit(f"{TABLE.relative_to(ROOT)} has no row that could be read")
    return rows


def keywords() -> set[str]:
    """The variables that keywords of `comity.init` stand for."""
    classes = (node for node in ast.parse(FUNCTIONS.read_text()).body if isinstance(node, ast.ClassDef))
    fields = next(c for c in classes if c.name == "Settings").body
    names = [f.target.id for f in fields if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
    return {f"COMITY_{name.upper()}" for name in ["timeout", *names]}


def tables() -> str:
    titles = dict(TITLE.findall(TOPICS.read_text()))
    out, topic = [], None
    for row in variables():
        if row["topic"] != topic:
            topic = row["topic"]
            out += [
                "",
                f"## {titles[topic]}",
                "",
                "| variable | what it does | default | example |",
                "|---|---|---|---|",
            ]
        more = f" ({SEE[row['name']]})" if row["name"] in SEE else ""
        cells = (f"`{row['name']}`", row["about"], row["default"] + more, f"`{row['example']}`")
        out.append(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |")
    return "\n".join([*out, "", ""])


def page() -> str:
    """The page with the tables that the code has today."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE.relative_to(ROOT)} lacks the lines {BEGIN.strip()} and {END.strip()}")
    return before + begin + tables() + end + after


def main() -> None:
    parser = argparse.ArgumentParser(description="The tables of variables.")
    parser.add_argument("--check", action="store_true", help="fail if the page is not current")
    args = parser.parse_args()
    text = page()
    if not args.check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit(f"{PAGE.relative_to(ROOT)} is not current: run python docs/make/settings.py")


if __name__ == "__main__":
    main()
