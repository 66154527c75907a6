//! Secrets in what is handed to others: what they look like, and how they are taken out.
//!
//! The text of a job key and the values of variables that are named like secrets are taken out wherever they stand. So is what an output
//! shows as the value of such a variable, for a rank's own variables (`--env`) are not known here. Too much is taken out rather than too
//! little.
use regex_lite::{Captures, Regex};
use std::ffi::OsString;
use std::ops::Range;

/// Text in the place of a secret.
const REMOVED: &str = "[removed]";
/// Shorter values stand for other things as well.
const SHORTEST: usize = 8;

/// Returns whether a variable is named as secrets are. The name of a file with a key is none.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let is_within = |w: &&str| name.contains(*w);
    !is_place(&name)
        && (name.ends_with("AUTH") || PLAIN.iter().any(is_within) || ["KEY", "TOKEN"].iter().any(is_within))
}

/// Names that mean a secret however they are written.
const PLAIN: [&str; 5] = ["SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL"];

fn is_place(name: &str) -> bool {
    ["_FILE", "_FD", "_PATH"].iter().any(|end| name.ends_with(end))
}

/// The same of a name in an output. Logs of training have a "token" and a "key" in every line, so in small letters these count only at the
/// end of a longer name, and numbers are none.
fn is_shown_secret(name: &str, value: &[u8]) -> bool {
    let upper = name.to_ascii_uppercase();
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        return is_secret(name);
    }
    let is_number = value.iter().all(|b| b.is_ascii_digit() || b".,-+eE%".contains(b));
    let ends = |word: &&str| upper.strip_suffix(*word).is_some_and(|rest| !rest.is_empty());
    !is_place(&upper)
        && (PLAIN.iter().any(|w| upper.contains(w))
            || !is_number && ["KEY", "TOKEN", "AUTH"].iter().any(ends))
}

/// Values to remove, the longest first: of a key its bytes and their digits.
fn secrets(vars: &[(OsString, OsString)]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for (name, value) in vars {
        if is_secret(&name.to_string_lossy()) {
            all.push(value.to_string_lossy().trim().as_bytes().to_vec());
        }
        if name == "COMITY_KEY_FILE"
            && let Ok(text) = std::fs::read(value)
        {
            let hex: String = text.iter().map(|b| format!("{b:02x}")).collect();
            all.extend([hex.to_ascii_uppercase().into_bytes(), hex.into_bytes()]);
            all.extend([text.trim_ascii().to_vec(), text]);
        }
    }
    all.retain(|s| s.len() >= SHORTEST);
    all.sort_by_key(|s| std::cmp::Reverse(s.len()));
    all
}

fn remove(text: &mut Vec<u8>, secrets: &[Vec<u8>]) {
    for secret in secrets {
        let mut from = 0;
        while let Some(at) =
            text.get(from..).and_then(|t| t.windows(secret.len()).position(|w| w == secret.as_slice()))
        {
            text.splice(from + at..from + at + secret.len(), REMOVED.bytes());
            from += at + REMOVED.len();
        }
    }
}

/// Secrets of variables, and the patterns by which an output shows others.
pub(crate) struct Secrets {
    values: Vec<Vec<u8>>,
    named: Regex,
    header: Regex,
    bearer: Regex,
    url: Regex,
}

impl Secrets {
    /// Those that this process's environment has now.
    pub(crate) fn of_this_process() -> Result<Self, regex_lite::Error> {
        Self::of(&std::env::vars_os().collect::<Vec<_>>())
    }

    pub(super) fn of(vars: &[(OsString, OsString)]) -> Result<Self, regex_lite::Error> {
        // A variable and its value, as `env`, a shell, Python, JSON or Rust print them: `A=value`, `'A': 'value'`, `("A", "value")`.
        const NAME: &str = r"\b([A-Za-z0-9_-]*(?i:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH)[A-Za-z0-9_-]*)";
        const BETWEEN: &str = r#"\\?['"]?(?:\s*[=:]\s*|,\s*)(?:Some\()?"#;
        // To the quote that it began with, past those that are escaped, also in a text that is a string itself; else to white space.
        const VALUE: &str = r#"(?:b?\\"((?:\\\\\\"|\\[^"\n]|[^"\\\n])+)|b?"((?:\\.|[^"\\\n])+)|b?'((?:\\.|[^'\\\n])+)|([^\s'"]\S*))"#;
        Ok(Self {
            values: secrets(vars),
            named: Regex::new(&format!("{NAME}{BETWEEN}{VALUE}"))?,
            header: Regex::new(
                r#"(?i)\bauthorization\\?['"]?\s*[:=,]\s*(?:(?-i:b)?\\?['"])?((?:bearer|basic|token|negotiate)\s+[^\s'"\\]+|[^\r\n'"\\]+)"#,
            )?,
            bearer: Regex::new(r"(?i)\bbearer\s+([a-z0-9._~+/=-]{8,})")?,
            // A password may have an @ itself.
            url: Regex::new(r#"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@"'<>]*:([^\s"'<>]+)@"#)?,
        })
    }

    /// The text without them.
    pub(crate) fn removed(&self, mut text: Vec<u8>) -> Vec<u8> {
        remove(&mut text, &self.values);
        // The patterns read text: a character for each byte, whatever it is.
        let text: String = text.into_iter().map(char::from).collect();
        let first = |c: &Captures<'_>| c.get(1).map(|m| m.range());
        let mut text = without(&text, &self.header, first);
        text = without(&text, &self.bearer, first);
        text = without(&text, &self.url, first);
        text = without(&text, &self.named, |c| {
            let value = (2..=5).find_map(|i| c.get(i))?;
            let is_long = value.as_str().chars().count() >= SHORTEST;
            let is_secret = is_long && is_shown_secret(&c[1], value.as_str().as_bytes());
            is_secret.then(|| value.range())
        });
        text.chars().map(|c| c as u8).collect()
    }
}

/// The text without what `secret` names in each match.
fn without(text: &str, pattern: &Regex, secret: impl Fn(&Captures<'_>) -> Option<Range<usize>>) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut kept = 0;
    let mut from = 0;
    while let Some(found) = pattern.captures_at(text, from) {
        let whole = found.get(0).map_or(0..0, |m| m.range());
        match secret(&found) {
            Some(at) => {
                clean.push_str(&text[kept..at.start]);
                clean.push_str(REMOVED);
                kept = at.end;
                from = whole.end.max(from + 1);
            }
            // In what looked like its value another name may stand.
            None => from = found.get(1).map_or(whole.end, |m| m.end()).max(from + 1),
        }
        if from >= text.len() {
            break;
        }
    }
    clean.push_str(&text[kept..]);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(text: &str) -> String {
        String::from_utf8(Secrets::of(&[]).unwrap().removed(text.into())).unwrap()
    }

    #[test]
    fn what_an_output_shows_as_a_secret_is_taken_out() {
        for (before, after) in [
            ("HF_TOKEN=hf_0123456789\nB=2", "HF_TOKEN=[removed]\nB=2"),
            ("{'WANDB_API_KEY': 'abcdefghijk', 'A': 'b'}", "{'WANDB_API_KEY': '[removed]', 'A': 'b'}"),
            ("{\"PASSWORD\":\"abcdefghijk\"}", "{\"PASSWORD\":\"[removed]\"}"),
            ("[(\"API_TOKEN\", \"abcdefghijk\")]", "[(\"API_TOKEN\", \"[removed]\")]"),
            ("{b'S3_SECRET': b'abcdefghijk'}", "{b'S3_SECRET': b'[removed]'}"),
            ("export A_KEY=\"abcdefghijk\"", "export A_KEY=\"[removed]\""),
            ("INFO:root:HF_TOKEN=hf_0123456789", "INFO:root:HF_TOKEN=[removed]"),
            ("URL=https://x/?API_TOKEN=0123456789", "URL=https://x/?API_TOKEN=[removed]"),
            ("DB_PASSWORD=abc,def0123456789 B", "DB_PASSWORD=[removed] B"),
            ("PASSWORD=\"my long secret\" B", "PASSWORD=\"[removed]\" B"),
            ("{\\\"A_KEY\\\": \\\"abcdefghijk\\\"}", "{\\\"A_KEY\\\": \\\"[removed]\\\"}"),
            ("HF_TOKEN: Some(\"hf_0123456789\")", "HF_TOKEN: Some(\"[removed]\")"),
            // Without quotes: to white space, whatever stands there.
            ("DB_PASSWORD=p)LONGSECRET999 B", "DB_PASSWORD=[removed] B"),
            ("DB_PASSWORD=abcdefgh12;TAILSECRET99", "DB_PASSWORD=[removed]"),
            ("A_KEY=abc'def\"ghi]}jkl\tB", "A_KEY=[removed]\tB"),
            ("A_KEY=babcdefghijk", "A_KEY=[removed]"),
            // With quotes within.
            (r#"{"A_KEY":"abc\"defghijk","B":"c"}"#, r#"{"A_KEY":"[removed]","B":"c"}"#),
            (r#"{\"A_KEY\":\"abc\\\"defghijk\",\"B\":\"c\"}"#, r#"{\"A_KEY\":\"[removed]\",\"B\":\"c\"}"#),
            (r"{'A_KEY': 'abc\'defghijk', 'B': 1}", "{'A_KEY': '[removed]', 'B': 1}"),
            // Once is enough.
            ("{'A_KEY': '[removed]', A_KEY=[removed]\n", "{'A_KEY': '[removed]', A_KEY=[removed]\n"),
            ("{A_KEY=[removed]}", "{A_KEY=[removed]"),
            // In small letters, and by their end.
            ("db_password: abcdefgh1", "db_password: [removed]"),
            ("Password=abcdefgh1 dbPasswd='abcdefgh 1'", "Password=[removed] dbPasswd='[removed]'"),
            ("api_key=abcdefgh1 apiKey: abcdefgh1", "api_key=[removed] apiKey: [removed]"),
            ("REGISTRY_AUTH=abcdefgh1 B", "REGISTRY_AUTH=[removed] B"),
            ("TOKEN_FILE=DB_PASSWORD=abcdefgh1", "TOKEN_FILE=DB_PASSWORD=[removed]"),
            // Not a variable, no secret, too short, a place.
            ("token: 1234567890", "token: 1234567890"),
            ("next_token: 123456.7890", "next_token: 123456.7890"),
            ("tokens per second: 1234567890", "tokens per second: 1234567890"),
            ("LOSS=0.123456789", "LOSS=0.123456789"),
            ("TOKENS: 12345", "TOKENS: 12345"),
            ("COMITY_KEY_FILE=/home/me/job.key", "COMITY_KEY_FILE=/home/me/job.key"),
        ] {
            assert_eq!(clean(before), after);
            assert_eq!(clean(after), after, "twice");
        }
        let raw = Secrets::of(&[]).unwrap().removed(b"\xff A_TOKEN=\xfe\xfd0123456789 \xfc".into());
        assert_eq!(raw, b"\xff A_TOKEN=[removed] \xfc", "bytes that are no text");
    }

    #[test]
    fn headers_and_addresses_with_a_password_are_taken_out() {
        for (before, after) in [
            ("Authorization: Bearer abc.def B", "Authorization: [removed] B"),
            ("authorization: Basic dXNlcjpwYXNz\nB", "authorization: [removed]\nB"),
            ("{\"Authorization\": \"Bearer abc\", \"B\": 1}", "{\"Authorization\": \"[removed]\", \"B\": 1}"),
            ("Proxy-Authorization: abc def\r\nB", "Proxy-Authorization: [removed]\r\nB"),
            ("sent Bearer abcdefgh12 on", "sent Bearer [removed] on"),
            ("postgres://me:p@ss/w@db:5432/x", "postgres://me:[removed]@db:5432/x"),
            ("\"redis://:hunter2@db\"", "\"redis://:[removed]@db\""),
            ("tcp://10.0.0.1:7000 me@host ssh://me@host", "tcp://10.0.0.1:7000 me@host ssh://me@host"),
        ] {
            assert_eq!(clean(before), after);
        }
    }
}
