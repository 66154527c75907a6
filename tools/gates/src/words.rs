//! Words of comments, of sentences for people, and of kinds of links.

use super::text::{Source, has_word};

/// Doc comments that begin with no noun or verb: the thing, or the act.
pub(crate) fn avoided(file: &Source) -> Vec<String> {
    const AVOIDED: [&str; 5] = ["What", "Who", "Whom", "Of", "As"];
    let mut within = false;
    let mut found = Vec::new();
    for (n, line) in (1..).zip(&file.lines) {
        let comment = ["/// ", "//! "].iter().find_map(|mark| line.text.trim_start().strip_prefix(mark));
        let first = comment.and_then(|c| c.split(|c: char| !c.is_alphanumeric()).next());
        if !within && first.is_some_and(|word| AVOIDED.contains(&word)) {
            found.push(format!("{}:{n}: begin with a noun or a verb: {}", file.name, line.text.trim()));
        }
        within = comment.is_some();
    }
    found
}

/// Sentences of a library or a command that name a path such as `Group::split`: who calls from Python, C or Swift has none of that name.
pub(crate) fn of_rust(file: &Source) -> Vec<String> {
    // Rust's users alone read the sentences of the crate; the table of settings names a thing in each language.
    const EXEMPT: [&str; 2] = ["crates/comity-candle/", "crates/comity-settings/src/settings/table.rs"];
    if !file.name.starts_with("crates/") || EXEMPT.iter().any(|place| file.name.starts_with(place)) {
        return Vec::new();
    }
    let literals = file.shipped().flat_map(|(n, line)| line.literals.iter().map(move |words| (n, words)));
    literals
        .filter(|(_, words)| words.contains(' ') && has_path(words))
        .map(|(n, words)| {
            let wrong = "a sentence names an item of Rust; name the variable, or the thing";
            format!("{}:{n}: {wrong}: {words}", file.name)
        })
        .collect()
}

/// Returns whether `::` stands between a name with a capital letter and another name.
fn has_path(words: &str) -> bool {
    words.match_indices("::").any(|(at, _)| {
        let before = words[..at].rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let after = words[at + 2..].chars().next();
        before.starts_with(|c: char| c.is_ascii_uppercase()) && after.is_some_and(char::is_alphabetic)
    })
}

/// Kinds of links that a crate above that of the transports names: a new one is a folder and a line there.
pub(crate) fn kinds(file: &Source) -> Vec<String> {
    const ABOVE: [&str; 4] = ["comity", "comity-job", "comity-rendezvous", "comity-settings"];
    const KINDS: [(&str, &str); 5] =
        [("Local", "local"), ("Shm", "shm"), ("Unix", "unix"), ("Rdma", "verbs"), ("Tcp", "tcp")];
    if !ABOVE.iter().any(|name| file.name.starts_with(&format!("crates/{name}/src/"))) {
        return Vec::new();
    }
    let names = |code: &str| {
        KINDS.iter().any(|(kind, folder)| {
            let words =
                [format!("LinkKind::{kind}"), format!("transport::{folder}"), format!("transports.{folder}")];
            words.iter().any(|word| has_word(code, word))
        })
    };
    let found = file.shipped().filter(|(_, line)| names(&line.code));
    let place = "a kind of link is named outside of comity-transport";
    found.map(|(n, line)| format!("{}:{n}: {place}: {}", file.name, line.text.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("crates/comity/src/x.rs", text)
    }

    #[test]
    fn paragraphs_begin_with_a_noun_or_a_verb() {
        for bad in ["/// What it is.", "    //! Whom it names, first.", "//! Name.\n//!\n//! As before."] {
            assert_eq!(avoided(&source(bad)).len(), 1, "{bad}");
        }
        for good in ["/// Whatever.", "/// The rank\n/// Of a peer.", "// What for.", "let s = \"/// What\";"]
        {
            assert!(avoided(&source(good)).is_empty(), "{good}");
        }
    }

    #[test]
    fn a_sentence_names_no_item_of_rust() {
        let found = of_rust(&source("fn f() {\n    bad(\"call Group::split, or\")\n}\n"));
        assert!(found.len() == 1 && found[0].starts_with("crates/comity/src/x.rs:2: "), "{found:?}");
        assert_eq!(of_rust(&source("#[error(\"off (Detection::Off)\")]")).len(), 1);
        for good in [
            "/// Group::split is it",
            "Group::split(\"a b\")",
            "f(\"ends with ::1 or fe80::a\")",
            "\"Group::split\"",
            "#[cfg(test)]\nmod tests {\n    f(\"call Group::split\")\n}\n",
        ] {
            assert!(of_rust(&source(good)).is_empty(), "{good}");
        }
    }

    #[test]
    fn a_kind_outside_is_found() {
        for bad in
            ["g(LinkKind::Tcp, \"x\")", "use crate::transport::tcp::Matrix;", "self.transports.tcp.n = 2;"]
        {
            assert_eq!(kinds(&source(bad)).len(), 1, "{bad}");
            assert!(kinds(&Source::new("crates/comity-transport/src/tcp/mod.rs", bad)).is_empty(), "{bad}");
        }
        assert!(kinds(&source("LinkKind::Mpi, LinkKind::LISTED, \"LinkKind::Tcp\"")).is_empty());
    }
}
