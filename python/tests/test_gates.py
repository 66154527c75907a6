"""Rules of `tools/gates.py` over Rust: what each finds, and what it lets pass."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

GATES = runpy.run_path(str(Path(__file__).parents[2] / "tools/gates.py"))


def findings(rule: str, text: str, name: str = "crates/comity/src/x.rs") -> list[str]:
    return list(GATES[rule](GATES["Source"](name, text)))


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("a // unsafe\nb", "a          \nb"),
        ("a /* x y */ b", "a           b"),
        (r"""f("unsafe \" x", 'x', '\'', b)""", "f(             ,    ,     , b)"),
        ('r#"a " b"# c', "           c"),
        ("fn f<'a>(x: &'a str) -> R", "fn f<'a>(x: &'a str) -> R"),
        ('for x in rr"y"', "for x in rr   "),
        ('"open', "     "),
    ],
)
def test_only_code_is_left(source: str, code: str) -> None:
    assert "\n".join(GATES["Source"]("x.rs", source).code) == code


@pytest.mark.parametrize(
    ("text", "shipped"),
    [
        ("#[cfg(test)]\nmod tests;\nfn f() {}", [3]),
        ("#[cfg(all(test, loom))]\nmod t {\n    x();\n}\na", [5]),
        ("#[cfg(test)]\n#[cfg(unix)]\nmod tests {\n    fn f() {\n    }\n}", []),
        ("    #[cfg(test)]\n    fn f() {\n        x\n    }\n    a", [5]),
    ],
)
def test_tests_are_marked(text: str, shipped: list[int]) -> None:
    assert [n for n, _ in GATES["Source"]("crates/x/src/x.rs", text).shipped()] == shipped
    assert GATES["Source"]("crates/x/src/x/tests.rs", text).shipped() == []


@pytest.mark.parametrize(
    "wait",
    [
        "poll(&mut fds, None)",
        "thread::park();",
        "self.done.wait(out)",
        "hint::spin_loop()",
        "(self.wait)(fd, until)",
        "let _ = thread.join();",
        "let job = jobs.recv()?;",
        "c.wait_timeout_while(g, t, |x| x.is_none())",
    ],
)
def test_a_wait_needs_a_reason(wait: str) -> None:
    assert len(findings("unexplained", wait)) == 1
    assert findings("unexplained", f"// WAIT: it ends.\n{wait}") == []
    assert findings("unexplained", wait, "crates/comity-cli/src/lib.rs") == []


@pytest.mark.parametrize(
    "bad",
    [
        "// WAIT:\nx.wait()",
        "// WAIT(until)\nx.wait()",
        "// WAIT: it ends.\n\nx.wait()",
        "// WAIT: it ends.\na();\nx.wait()",
        'let s = "// WAIT: it ends.";\nx.wait()',
        "fn f() {\n    // WAIT(failure): why\n    x.wait();\n}\nfn next() { status.failure() }",
        "fn before() {\n    failure();\n}\n\n// WAIT(failure): why\nfn f() {\n    x.wait();\n}",
        "// WAIT(failure): why\nfn f() {\n    failure();\n    fn inner() {\n        x.wait();\n    }\n}",
        "status.failure();\n// WAIT(failure): outside any function\nx.wait();",
    ],
)
def test_a_reason_stands_at_the_wait(bad: str) -> None:
    assert len(findings("unexplained", bad)) == 1


@pytest.mark.parametrize(
    "good",
    [
        "fn wait(&self)",
        "fn join()",
        "// then wait(x)",
        "self.poll_all()",
        "names.join(x)",
        "d.recv(team, 1, buf)",
        "#[cfg(test)]\nmod tests { fn f() { x.wait() } }",
    ],
)
def test_others_are_no_waits(good: str) -> None:
    assert findings("unexplained", good) == []


@pytest.mark.parametrize(
    "good",
    [
        "fn f() {\n    // WAIT(failure): why\n    x.wait(); status.failure()\n}",
        "/// Does.\n// WAIT(failure): why\n#[inline]\nfn f() {\n    if a {\n        x.wait();\n    }\n    failure();\n    y.wait();\n}",
        "fn f() {\n    failure();\n    // WAIT(failure): why\n    let y =\n        x.wait();\n}",
    ],
)
def test_the_function_that_waits_has_what_ends_it(good: str) -> None:
    assert findings("unexplained", good) == []
    assert findings("unexplained", good.replace("failure()", "other()")) != []


@pytest.mark.parametrize(
    "bad",
    ["/// What it is.", "    //! Whom it names, first.", "//! Name.\n//!\n//! As before.", "/// Whether."],
)
def test_a_paragraph_begins_with_a_noun_or_a_verb(bad: str) -> None:
    assert len(findings("avoided", bad)) == 1


@pytest.mark.parametrize(
    "good", ["/// Whatever.", "/// The rank\n/// Of a peer.", "// What for.", 'let s = "/// What";']
)
def test_other_words_may_begin_a_line(good: str) -> None:
    assert findings("avoided", good) == []


def test_a_sentence_names_no_item_of_rust() -> None:
    found = findings("of_rust", 'fn f() {\n    bad("call Group::split, or")\n}\n')
    assert len(found) == 1 and found[0].startswith("crates/comity/src/x.rs:2: ")
    assert len(findings("of_rust", '#[error("off (Detection::Off)")]')) == 1
    for good in [
        "/// Group::split is it",
        'Group::split("a b")',
        'f("ends with ::1 or fe80::a")',
        '"Group::split"',
        '#[cfg(test)]\nmod tests {\n    f("call Group::split")\n}\n',
    ]:
        assert findings("of_rust", good) == []


@pytest.mark.parametrize(
    "bad", ['g(LinkKind::Tcp, "x")', "use crate::transport::tcp::Matrix;", "self.transports.tcp.n = 2;"]
)
def test_a_kind_of_link_outside_is_found(bad: str) -> None:
    assert len(findings("kinds", bad)) == 1
    assert findings("kinds", bad, "crates/comity-transport/src/tcp/mod.rs") == []
    assert findings("kinds", 'LinkKind::Mpi, LinkKind::LISTED, "LinkKind::Tcp"') == []


LIB = """mod low;
pub use low::{Thing, deep::{One, Two as Zwei}};
pub use high::High;
pub use half;
pub use other::Far;
use below::{cellar, stairs};"""


def library(name: str, text: str) -> list[str]:
    """Findings in a library with this file more."""
    files = {"lib.rs": LIB, "low.rs": "", "middle/mod.rs": "", "high.rs": "", name: text}
    sources = [GATES["Source"](f"crates/x/src/{name}", text) for name, text in files.items()]
    return list(GATES["misplaced"](sources, "crates/x/src/", ["low", "middle", "high"]))


def middle(code: str) -> list[str]:
    return library("middle/part.rs", f"use crate::low;\n{code}")


@pytest.mark.parametrize(
    "good",
    [
        "use crate::{Thing, One, Zwei};",
        "use crate::{\n    middle::{\n        other::{A, B},\n        C,\n    },\n    low::{self, D},\n};",
        "fn f() { crate::low::f() }",
        '// use crate::high;\nlet s = "crate::high";',
        "use super::part::X;\nuse self::high;",
        "#[cfg(test)]\nmod tests {\n    use crate::high;\n}",
        "use crate::{half::f16, Far, cellar::X};\npub(crate) struct X;\npub(in crate::middle) struct Y;",
    ],
)
def test_lower_rooms_may_be_imported(good: str) -> None:
    assert middle(good) == []
    assert library("middle/tests/a.rs", "use crate::high::X;") == []


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        ("use crate::high;", 2),
        ("use crate::{low::Y, high::X};", 2),
        ("use crate::{\n    low::{A, B},\n    high::{C, D},\n};", 2),
        ("use crate::High;", 2),
        ("\nfn f() -> crate::high::X {}", 3),
        ("fn f(a: &crate::low::A, b: crate::high::B) {}", 2),
        ("#[cfg(test)]\nmod tests {\n    use crate::high;\n}\nuse crate::high;", 6),
    ],
)
def test_an_upward_import_is_found(bad: str, line: int) -> None:
    found = middle(bad)
    assert len(found) == 1
    assert found[0].startswith(f"crates/x/src/middle/part.rs:{line}: middle imports crate::")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("middle/part.rs", "use crate::Nobody;", "whose is Nobody"),
        ("middle/part.rs", "use crate::*;", "whose is *"),
        ("middle/part.rs", "use super::super::high;", "whose is super::super::"),
        ("low.rs", "use super::low::X;", "whose is super::"),
        ("attic.rs", "", "attic is no room"),
    ],
)
def test_what_cannot_be_placed_is_found(name: str, text: str, why: str) -> None:
    found = library(name, text)
    assert len(found) == 1 and why in found[0]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("let JobRequest { ranks, .. } = request;", True),
        ("let HostsRequest {\n    hosts,\n    ..\n} = hosts;", True),
        ("let all = RankTerms { insecure: true, ..Default::default() };", True),
        ("let JobRequest { ranks, env: _ } = request;", False),
        ("let Job { ranks, .. } = job;", False),
        ("#[cfg(test)]\nfn f() {\n    let JobRequest { ranks, .. } = request;\n}", False),
    ],
)
def test_a_request_is_taken_apart_by_name(text: str, is_found: bool) -> None:
    assert bool(findings("unnamed", text, "crates/comity-launch/src/x.rs")) == is_found
    assert findings("unnamed", text, "crates/comity/src/x.rs") == []
