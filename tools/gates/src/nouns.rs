//! Doc comments begin with a noun or a verb: the thing, or the act.

/// First words that stand for a thing with a name.
const AVOIDED: [&str; 5] = ["What", "Who", "Whom", "Of", "As"];

/// Doc comments of a Rust file that begin with such a word, a line each.
pub(crate) fn avoided(name: &str, text: &str) -> Vec<String> {
    let mut within = false;
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let comment = ["/// ", "//! "].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        let first = comment.and_then(|c| c.split(|c: char| !c.is_alphanumeric()).next());
        if !within && first.is_some_and(|word| AVOIDED.contains(&word)) {
            found.push(format!("{name}:{}: begin with a noun or a verb: {}", i + 1, line.trim()));
        }
        within = comment.is_some();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::avoided;

    #[test]
    fn paragraphs_begin_with_a_noun_or_a_verb() {
        for bad in ["/// What it is.", "    //! Whom it names, first.", "//! Name.\n//!\n//! As before."] {
            assert_eq!(avoided("x.rs", bad).len(), 1, "{bad}");
        }
        for good in [
            "/// Whatever.",
            "/// The rank\n/// Of a peer.",
            "// What for.",
            "let s = \"/// What\";",
            "/// Ascending",
        ] {
            assert!(avoided("x.rs", good).is_empty(), "{good}");
        }
    }
}
