//! Sentences for people name no item of Rust: who calls from Python, C or Swift has none of that name.

use super::text::{blank, literals, without_tests};

/// Rust's users alone read the sentences of the crate; the table of settings names a thing in each language.
const EXEMPT: [&str; 2] = ["crates/comity-candle/", "crates/comity-settings/src/settings/table.rs"];

/// Sentences of a library's or a command's file that name a path such as `Group::split`, a line each.
pub(crate) fn in_rust(name: &str, text: &str) -> Vec<String> {
    let is_test = name.contains("/tests/") || name.contains("/examples/") || name.ends_with("tests.rs");
    if !name.starts_with("crates/") || is_test || EXEMPT.iter().any(|place| name.starts_with(place)) {
        return Vec::new();
    }
    let code = blank(text);
    let kept: Vec<usize> = without_tests(&code).into_iter().map(|(line, _)| line).collect();
    literals(text)
        .into_iter()
        .filter(|(line, words)| kept.binary_search(line).is_ok() && words.contains(' ') && has_path(words))
        .map(|(line, words)| {
            format!(
                "{name}:{}: a sentence names an item of Rust; name the variable, or the thing: {words}",
                line + 1
            )
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

#[cfg(test)]
mod tests {
    use super::in_rust;

    #[test]
    fn a_sentence_names_no_item_of_rust() {
        let found = in_rust("crates/comity/src/x.rs", "fn f() {\n    bad(\"call Group::split, or\")\n}\n");
        assert!(found.len() == 1 && found[0].starts_with("crates/comity/src/x.rs:2: "), "{found:?}");
        assert_eq!(in_rust("crates/comity/src/x.rs", "#[error(\"off (Detection::Off)\")]").len(), 1);
        for good in [
            "/// Group::split is it",
            "Group::split(\"a b\")",
            "f(\"ends with ::1 or fe80::a\")",
            "\"Group::split\"",
            "#[cfg(test)]\nmod tests {\n    f(\"call Group::split\")\n}\n",
        ] {
            assert!(in_rust("crates/comity/src/x.rs", good).is_empty(), "{good}");
        }
        assert!(in_rust("crates/comity/src/a/tests/x.rs", "f(\"call Group::split\")").is_empty());
    }
}
