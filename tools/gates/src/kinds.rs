//! A kind of link is named in its own folder and in the table of transports, so that a new one is a folder and a line.

use super::text::{blank, without_tests};

/// Crates above that of the transports.
const LIBRARY: [&str; 4] = [
    "crates/comity/src/",
    "crates/comity-job/src/",
    "crates/comity-rendezvous/src/",
    "crates/comity-settings/src/",
];

/// Lines of a file that name a kind which is not theirs to name. `table` is the text of `comity-transport`'s `lib.rs`.
pub(crate) fn named(name: &str, text: &str, table: &str) -> Vec<String> {
    let is_test = name.contains("/tests/") || name.ends_with("tests.rs");
    if !LIBRARY.iter().any(|sources| name.starts_with(sources)) || is_test {
        return Vec::new();
    }
    let words: Vec<_> = lines(table)
        .flat_map(|(folder, kind)| {
            [format!("LinkKind::{kind}"), format!("transport::{folder}"), format!("transports.{folder}")]
        })
        .collect();
    let code = blank(text);
    without_tests(&code)
        .into_iter()
        .filter(|(_, line)| words.iter().any(|w| super::has_word(line, w)))
        .map(|(i, line)| {
            let place = "outside of comity-transport";
            format!("{name}:{}: a kind of link is named {place}: {}", i + 1, line.trim())
        })
        .collect()
}

/// Folder and kind of the table's lines: `tcp => Tcp = 2, "tcp", ...`.
fn lines(table: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = table.lines().skip_while(|l| !l.starts_with("transports! {"));
    lines.filter_map(|l| {
        let (folder, rest) = l.split_once(" => ")?;
        Some((folder.trim(), rest.split_once(" = ")?.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "transports! {\n    tcp => Tcp = 2, \"tcp\", \"TCP\": \"TCP.\";\n}\n";

    #[test]
    fn a_kind_outside_is_found() {
        assert_eq!(lines(TABLE).collect::<Vec<_>>(), [("tcp", "Tcp")]);
        let text = "fn f() {\n    g(LinkKind::Tcp, \"LinkKind::Tcp\")\n}\n";
        let of = |name| named(name, text, TABLE).len();
        assert_eq!(of("crates/comity/src/engine/run.rs"), 1);
        assert_eq!(of("crates/comity-transport/src/tcp/mod.rs"), 0);
        for reach in ["use crate::transport::tcp::Matrix;", "self.transports.tcp.connections = 2;"] {
            assert_eq!(named("crates/comity-settings/src/settings/mod.rs", reach, TABLE).len(), 1, "{reach}");
        }
        assert!(
            named("crates/comity/src/engine/run.rs", "LinkKind::Mpi, LinkKind::LISTED", TABLE).is_empty()
        );
    }
}
