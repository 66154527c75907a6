"""Rules that neither the compiler nor clippy checks, over all sources in Rust: the reason of each wait, which room imports which, who may
name a kind of link, the first word of a doc comment, what sentences for people name, and requests of the launcher taken apart by name.

`python3 tools/gates.py` prints a line for each finding. `python/tests/test_gates.py` has what each rule finds, and what it lets pass.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Comments and literals. A quote that closes no character begins a lifetime.
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|\b(?:b|c)?r(#*)".*?(?:"\1|\Z)|"(?:\\.|[^"\\])*(?:"|\Z)|'(?:\\.[^']*|[^\\'])'""",
    re.S,
)


class Source:
    """A file, line by line. In `code` spaces stand for comments and literals, so that words in them are not taken for code."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text.split("\n")
        self.code = TOKEN.sub(lambda token: re.sub(r"[^\n]", " ", token[0]), text).split("\n")
        tokens = ((1 + text.count("\n", 0, m.start()), m[0]) for m in TOKEN.finditer(text))
        #: Each with the number of its first line.
        self.literals = [(n, token) for n, token in tokens if not token.startswith("/")]
        is_test = re.search(r"/tests/|/examples/|/conformance|tests\.rs$", name) is not None
        #: Whether a line is for tests only.
        self.tests = [is_test] * len(self.code)
        for at, line in enumerate(self.code):
            if not self.tests[at] and (head := re.match(r"( *)#\[cfg\((?:all\()?test", line)):
                end = self._end_of_item(at + 1, head[1] + "}")
                self.tests[at:end] = [True] * (end - at)

    def _end_of_item(self, at: int, close: str) -> int:
        """As the formatter leaves it: an item ends on its line, or with a brace as far in as it begins."""
        while at < len(self.code) and self.code[at].lstrip().startswith("#["):
            at += 1
        if self.code[at : at + 1] and not self.code[at].endswith((";", ",", "}")):
            at += 1
            while at < len(self.code) and not self.code[at].startswith(close):
                at += 1
        return min(at + 1, len(self.code))

    def shipped(self) -> list[tuple[int, str]]:
        """Lines of code that are not for tests, with their numbers from 1."""
        return [
            (n, code)
            for n, (code, is_test) in enumerate(zip(self.code, self.tests, strict=True), 1)
            if not is_test
        ]


# Waits: each says what ends it when the other side never comes.
#
#     // WAIT(until): links being made, to the join deadline
#     poll_until(&mut fds, until)?;
#
# The comment stands right above the statement that waits, on its line, or above the head of its function. The word in brackets is what ends
# the wait, and must be in the code of that function. Without brackets nothing there ends it, and the comment says what does: a thread that
# was told to stop, a call that has a deadline.

#: Crates in which each wait has a reason.
WAIT_PLACES = re.compile(
    r"crates/comity(-base|-channel|-transport|-settings|-rendezvous|-job|-membership|-py)?/src/"
)


def called(names: str, given: str) -> str:
    """Pattern of a call of these functions, or of fields that hold one."""
    return rf"(?<!fn )\b(?:{names}){given}|\.(?:{names})\){given}"


#: Calls that can sleep, or are made again and again instead. With something given, `join` and `recv` join texts and receive for a group.
WAITS = re.compile(
    called("poll|poll_until|park|park_timeout|sleep|wait(?:_timeout)?(?:_while)?|recv_timeout", r"\(")
    + "|"
    + called("spin_loop|yield_now", r"\(")
    + "|"
    + called("join|recv", r"\(\)")
)


def unexplained(file: Source) -> Iterator[str]:
    """Waits without a reason."""
    if not WAIT_PLACES.match(file.name):
        return
    for n, code in file.shipped():
        if not WAITS.search(code):
            continue
        around = function(file.code, n - 1)
        found = reason(file, n - 1) or (around and reason(file, around.start))
        inside = [file.code[i] for i in around or () if not file.tests[i]]
        if not found:
            wrong = "a wait without `// WAIT(what ends it): why` above it"
        elif not found[1]:
            wrong = "a wait, of which WAIT says nothing"
        elif found[0] and not any(re.search(rf"\b{re.escape(found[0])}\b", line) for line in inside):
            wrong = f"a wait in a function without `{found[0]}`, though WAIT says that it ends by it"
        else:
            continue
        yield f"{file.name}:{n}: {wrong}: {file.text[n - 1].strip()}"


def function(code: list[str], at: int) -> range | None:
    """Lines of the innermost function around a line, as the formatter leaves it: from its head to its last brace."""

    def indent(i: int) -> int:
        return len(code[i]) - len(code[i].lstrip())

    for head in range(at, -1, -1):
        if re.search(r"\bfn\b", code[head]) and (head == at or indent(head) < indent(at)):
            below = range(head + 1, len(code))
            ends = (i for i in below if code[i].lstrip().startswith("}") and indent(i) <= indent(head))
            end = head if code[head].rstrip().endswith("}") else next(ends, len(code) - 1)
            if end >= at:
                return range(head, end + 1)
    return None


def reason(file: Source, at: int) -> tuple[str | None, str] | None:
    """`WAIT` at the statement of a line, or in the comments right above it: the word that ends the wait, if one does, and why."""
    for i in range(at, -1, -1):
        text, code = file.text[i], file.code[i].strip()
        if "// WAIT" in text and (i == at or not code):
            said = re.search(r"// WAIT\s*(?:\(([^)]*)\))?:(.*)", text)
            return said and (said[1], said[2].strip())
        # A line that ends neither a statement nor a block belongs to the statement below it.
        if i < at and (code.endswith((";", "{", "}", ",")) or not text.strip()) and not code.startswith("#["):
            return None
    return None


#: First words of a doc comment that are no noun or verb: the thing, or the act.
AVOIDED = re.compile("What|Who|Whom|Whose|Which|One|Why|How|Where|Whether|Of|As")


def avoided(file: Source) -> Iterator[str]:
    """Paragraphs of doc comments that begin with such a word."""
    within = False
    for n, line in enumerate(file.text, 1):
        comment = re.match(r"\s*//[/!] (\w*)", line)
        if comment and not within and AVOIDED.fullmatch(comment[1]):
            yield f"{file.name}:{n}: begin with a noun or a verb: {line.strip()}"
        within = comment is not None


def of_rust(file: Source) -> Iterator[str]:
    """Sentences that name a path such as `Group::split`: who calls from Python, C or Swift has none of that name."""
    # Rust's users alone read the sentences of the crate; the table of settings names a thing in each language.
    exempt = ("crates/comity-candle/", "crates/comity-settings/src/settings/table.rs")
    if not file.name.startswith("crates/") or file.name.startswith(exempt):
        return
    for n, words in file.literals:
        named = re.search(r"(?<![^\W_])[A-Z][^\W_]*::[^\W\d_]", words)
        if named and " " in words and not file.tests[n - 1]:
            wrong = "a sentence names an item of Rust; name the variable, or the thing"
            yield f"{file.name}:{n}: {wrong}: {words}"


#: The table of transports: folder => kind = number. A new one is a folder and a line there, and no crate above names it.
LINKS = re.findall(
    r"^    (\w+) => (\w+) = \d+,",
    (ROOT / "crates/comity-transport/src/lib.rs").read_text(encoding="utf-8"),
    re.M,
)
KINDS = re.compile(
    r"\b(LinkKind::({1})|(transport::|transports\.)({0}))\b".format(*map("|".join, zip(*LINKS, strict=True)))
)


def kinds(file: Source) -> Iterator[str]:
    """Kinds of links in those crates."""
    if re.match(r"crates/comity(-job|-rendezvous|-settings)?/src/", file.name):
        for n, code in file.shipped():
            if KINDS.search(code):
                wrong = "a kind of link is named outside of comity-transport"
                yield f"{file.name}:{n}: {wrong}: {file.text[n - 1].strip()}"


# Rooms of one crate: each imports only lower ones. A room is a folder of a crate's `src`, or a file there. Another room is named from
# `crate::` on. Tests may import what they like, and every room what crates below its own have: there the compiler says what is above.

#: Folder of a crate's sources, and its rooms in an order in which each imports only those before it, so there is no circle.
ROOMS = {
    "crates/comity-base/src/": (
        [
            "fuzz_input",
            "sync",
            "call",
            "error",
            "sys",
            "key",
            "address",
            "view",
            "lanes",
            "stats",
            "root_cause",
        ]
    ),
    "crates/comity-settings/src/": ["exchange", "settings", "costs"],
    # State of a group is below those who make links, and those who use them.
    "crates/comity-job/src/": ["status", "control", "links"],
    "crates/comity/src/": (
        [
            "config",
            "recorder",
            "engine",
            "backend",
            "turn",
            "cuda",
            "group",
            "foreign",
            "warnings",
            "tools",
            "fuzz",
        ]
    ),
}


def misplaced(files: list[Source], sources: str, rooms: list[str]) -> Iterator[str]:
    """Imports that a crate's rooms may not have. One of the files is its `lib.rs`."""
    root = next((file for file in files if file.name == f"{sources}lib.rs"), None)
    if root is None:
        yield f"there is no {sources}lib.rs"
        return
    exported = exports(root)
    missing = list(rooms)
    for file in files:
        module = module_of(file.name, sources)
        if not module:
            continue
        room = module[0]
        if room not in rooms:
            yield f"{file.name}: {room} is no room; give it a place in tools/gates.py"
            continue
        if room in missing:
            missing.remove(room)
        for n, path in imports(file, len(module)):
            owner = path if path in rooms else exported.get(path)
            if owner is None:
                yield f"{file.name}:{n}: whose is {path}? It is no room, and lib.rs exports none such"
            # Else it is of another crate.
            elif owner in rooms and rooms.index(owner) > rooms.index(room):
                yield f"{file.name}:{n}: {room} imports crate::{path}, which stands above it"
    for room in missing:
        yield f"there is no room {room}; remove it from tools/gates.py"


def module_of(name: str, sources: str) -> list[str]:
    """Path of a file's module; none for `lib.rs`, tests and what is not of the crate."""
    if not name.startswith(sources) or name == f"{sources}lib.rs":
        return []
    parts = [part for part in name.removeprefix(sources).removesuffix(".rs").split("/") if part != "mod"]
    return [] if "tests" in parts else parts


def exports(root: Source) -> dict[str, str]:
    """Names that the crate's root exports or imports, each with the first part of its path."""
    found = {}
    for path in re.findall(r"\buse\b\s*([^;]*)", "\n".join(root.code)):
        head, joined, tail = path.strip().partition("::")
        for leaf in re.split("[{},]", tail if joined else head):
            if leaf.strip() and not leaf.strip().endswith("::"):
                found[re.split("[ :]", leaf.strip())[-1]] = head if joined else ""
    return found


def imports(file: Source, depth: int) -> Iterator[tuple[int, str]]:
    """Names of the root that a file, `depth` modules below it, uses, each with its line. Tests in it do not count."""
    shipped = file.shipped()
    # A way up that goes past the room, or may do so.
    up = "super::" if depth == 1 else "super::super::"
    yield from ((n, up) for n, code in shipped if up in code)
    code = "\n".join(code for _, code in shipped)
    for path in re.finditer(r"(?<!::)\bcrate\s*::\s*(?:\{([^;]*)|(\*|\w*))", code):
        n = shipped[code.count("\n", 0, path.start())][0]
        yield from ((n, name) for name in ([path[2]] if path[1] is None else first_names(path[1])))


def first_names(inside: str) -> list[str]:
    """First names of the paths within a brace, of which the last may be followed by others' code."""
    depth, names = 1, []
    for part in re.findall(r"[^{},]*[{},]", inside):
        if depth == 1 and (name := re.match(r"\s*(\*|\w+)", part)):
            names.append(name[1])
        depth += {"{": 1, "}": -1}.get(part[-1], 0)
        if depth == 0:
            break
    return names


#: Requests of `comity launch`: whoever takes one apart names each flag, so a new one does not compile before it has a place everywhere.
REQUEST = re.compile(r"(?<!struct )\b(?:JobRequest|RankTerms|HostsRequest|NodeRequest) \{[^{}]*?\.\.")


def unnamed(file: Source) -> Iterator[str]:
    """Requests of the launcher that are taken apart, or made, with fields left out."""
    if file.name.startswith(("crates/comity-launch/", "crates/comity-cli/")):
        shipped = "\n".join(
            "" if is_test else code for code, is_test in zip(file.code, file.tests, strict=True)
        )
        for found in REQUEST.finditer(shipped):
            n = 1 + shipped.count("\n", 0, found.start())
            yield f"{file.name}:{n}: `..` leaves out flags: name each field: {file.text[n - 1].strip()}"


def main() -> int:
    paths = (
        path
        for folder in ("crates", "tools", "xtask", "examples", "fuzz/fuzz_targets")
        for path in (ROOT / folder).rglob("*.rs")
    )
    names = ((path.relative_to(ROOT).as_posix(), path) for path in paths)
    files = [Source(name, path.read_text()) for name, path in sorted(names) if "/target/" not in name]
    found = [
        line
        for file in files
        for rule in (unexplained, avoided, of_rust, kinds, unnamed)
        for line in rule(file)
    ]
    for sources, rooms in ROOMS.items():
        found += misplaced(files, sources, rooms)
    print("\n".join(found) or f"{len(files)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
