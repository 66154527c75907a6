//! Documentation that says what the item does, not where else to read.
//!
//! A reader of one item, in an editor or on its page, should not have to go elsewhere for its first sentence. A pointer behind such a
//! sentence is welcome.

/// Words that send the reader to another place, of which nothing says what stands there.
const ELSEWHERE: [&str; 6] =
    ["see the module", "as the module says", "see the file", "see the header", "see above", "see below"];

/// Comments, of items or whole files, that only point elsewhere.
pub(crate) fn only_point(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (line, doc) in comments(text) {
        let small = doc.to_lowercase();
        if let Some(words) = ELSEWHERE.iter().find(|words| small.contains(*words)) {
            found.push(format!("{name}:{line}: \"{words}\": say what it does instead: {doc}"));
        } else if is_pointer(&small) {
            found.push(format!(
                "{name}:{line}: a comment that only points elsewhere; say what it does: {doc}"
            ));
        }
    }
    found
}

/// Whether a whole comment is `The same.`, `Likewise.`, or `See` and a link.
fn is_pointer(doc: &str) -> bool {
    let doc = doc.trim_end_matches('.');
    let is_link = |rest: &str| {
        let target = rest.strip_prefix('[').and_then(|r| r.split_once(']'));
        target.is_some_and(|(_, after)| after.is_empty() || after.starts_with('(') && after.ends_with(')'))
    };
    ["the same", "likewise", "ditto", "as above"].contains(&doc)
        || doc.strip_prefix("see ").is_some_and(is_link)
}

/// The comments of documentation: the number of the first line, and the words of the first paragraph.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut before, mut ended) = ("", false);
    for (i, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let mark = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark)).unwrap_or_default();
        let words = line.strip_prefix(mark).unwrap_or_default().trim();
        if mark.is_empty() {
            before = "";
        } else if mark != before {
            (before, ended) = (mark, words.is_empty());
            found.push((i + 1, words.to_owned()));
        } else if words.is_empty() {
            ended = true;
        } else if let Some((_, doc)) = found.last_mut().filter(|_| !ended) {
            *doc += " ";
            *doc += words;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_says_what_its_item_does() {
        for bad in [
            "/// See the module.\nstruct S;",
            "/// See the module. It stays until the end.\nstruct S;",
            "/// What it\n/// does: see\n/// the module.\nstruct S;",
            "    /// As the module says.\n    fn f() {}",
            "//! See above.",
            "/// The same.\nstruct S;",
            "/// Likewise.\nfn f() {}",
            "/// See [`World::ask`](super::World::ask).\nfn f() {}",
            "/// See [`ask`].\n///\n/// It may fail.\nfn f() {}",
        ] {
            assert_eq!(only_point("x.rs", bad).len(), 1, "{bad}");
        }
        let found = only_point("x.rs", "fn f() {}\n\n/// See the module.\nfn g() {}");
        assert!(found[0].starts_with("x.rs:3: "), "{found:?}");
        for good in [
            "/// Sends. See [`World::ask`](super::World::ask).\nfn f() {}",
            "/// See [`ask`] for how, and [`tell`] for why.\nfn f() {}",
            "/// The same bytes.\nSame,",
            "// See the module.\nlet s = \"/// See the module.\";",
            "/// The module that is seen.\nstruct S;",
            "/// Sends.\n///\n/// See below how.\nfn f() {}",
        ] {
            assert!(only_point("x.rs", good).is_empty(), "{good}");
        }
    }
}
