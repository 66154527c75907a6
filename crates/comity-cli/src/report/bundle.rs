//! `comity report --bundle`: one archive with what somebody else needs to help: logs, flight records, versions, settings; no secrets.
//!
//! The text of a job key and the values of variables that are named like secrets are taken out wherever they stand. So is what an output
//! shows as the value of such a variable, for a rank's own variables (`--env`) are not known here.
use super::read;
use crate::{here, info, save};
use flate2::{Compression, write::GzEncoder};
use regex::bytes::{Captures, Regex};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// Of a longer file the end is taken.
const MOST: u64 = 16 << 20;
/// What stands for a secret.
const REMOVED: &[u8] = b"[removed]";
/// Shorter values stand for other things as well.
const SHORTEST: usize = 8;

/// Writes the archive; what is in it, by name.
pub(super) fn bundle(to: &Path, logs: Option<&Path>) -> Result<Vec<String>, String> {
    let vars: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let secrets = secrets(&vars);
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    files.insert("versions.txt".into(), versions().into_bytes());
    files.insert("settings.txt".into(), info::all_settings().into_bytes());
    files.insert("environment.txt".into(), environment(&vars).into_bytes());
    if let Some(dir) = logs {
        let bad = |e: io::Error| format!("'{}': {e}", dir.display());
        for entry in std::fs::read_dir(dir).map_err(bad)? {
            let entry = entry.map_err(bad)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_ours = name.starts_with("rank-")
                && [".out", ".err", ".flight.json"].iter().any(|e| name.ends_with(e));
            // Opening a pipe would wait for its writer.
            if is_ours && entry.file_type().is_ok_and(|t| t.is_file()) {
                files.insert(format!("logs/{name}"), end_of(&entry.path()).map_err(bad)?);
            }
        }
        if let Ok((flights, _)) = read(dir)
            && !flights.is_empty()
        {
            files.insert("report.txt".into(), super::words::report(&flights).into_bytes());
        }
    }
    let shown = shown_values().map_err(|e| e.to_string())?;
    for text in files.values_mut() {
        remove(text, &secrets);
        remove_shown(text, &shown);
    }
    let put = packed(&files).and_then(|archive| save::replace(to, &archive, save::FOR_ALL));
    put.map_err(|e| format!("--bundle '{}': {e}", to.display()))?;
    Ok(files.into_keys().collect())
}

fn versions() -> String {
    let system = rustix::system::uname();
    let words = |w: &std::ffi::CStr| w.to_string_lossy().into_owned();
    format!(
        "comity {}\nsystem {} {} {}\nhost {}\ncores {}\npage {} bytes\nwhen {}\n",
        here::VERSION,
        words(system.sysname()),
        words(system.release()),
        words(system.machine()),
        words(system.nodename()),
        std::thread::available_parallelism().map_or(0, usize::from),
        rustix::param::page_size(),
        humantime::format_rfc3339_seconds(std::time::SystemTime::now()),
    )
}

/// The variables that launchers and libraries of this kind read; no others, which are nobody's business.
fn environment(vars: &[(OsString, OsString)]) -> String {
    let known = [
        "COMITY_",
        "NCCL_",
        "MLX_",
        "OMPI_",
        "PMI",
        "SLURM_",
        "MASTER_",
        "CUDA_VISIBLE",
        "UCX_",
        "GLOO_",
        "TORCH",
    ];
    let alone = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
    let mut lines: Vec<String> = vars
        .iter()
        .map(|(n, v)| (n.to_string_lossy(), v.to_string_lossy()))
        .filter(|(n, _)| known.iter().any(|k| n.starts_with(k)) || alone.contains(&n.as_ref()))
        .map(|(n, v)| if is_secret(&n) { format!("{n}=[removed]") } else { format!("{n}={v}") })
        .collect();
    lines.sort();
    lines.join("\n") + "\n"
}

/// Whether a variable is named as secrets are. The name of a file with a key is none.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let is_place = name.ends_with("_FILE") || name.ends_with("_FD");
    !is_place
        && ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"].iter().any(|w| name.contains(w))
}

/// What must not be told, the longest first: of a key its bytes and their digits.
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
            text.splice(from + at..from + at + secret.len(), REMOVED.iter().copied());
            from += at + REMOVED.len();
        }
    }
}

/// A variable and its value, as `env`, a shell, Python, JSON or Rust print them: `A=value`, `'A': 'value'`, `("A", "value")`. In
/// capitals, as variables are: logs of training have a "token" in every line.
fn shown_values() -> Result<Regex, regex::Error> {
    const NAME: &str = r"\b([A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)[A-Z0-9_]*)";
    const BETWEEN: &str = r#"\\?['"]?(?:\s*[=:]\s*|,\s*)(?:Some\()?b?\\?"#;
    // To the quote that it began with, else to what ends a word.
    const VALUE: &str = r#"(?:"([^"\n]+)|'([^'\n]+)|([^\s'"();}\]]+))"#;
    Regex::new(&format!("(?-u){NAME}({BETWEEN}){VALUE}"))
}

fn remove_shown(text: &mut Vec<u8>, shown: &Regex) {
    let cleaned = shown.replace_all(text, |c: &Captures<'_>| {
        let value = (3..=5).find_map(|i| c.get(i)).map_or(0..0, |m| m.range());
        let is_secret = is_secret(&String::from_utf8_lossy(&c[1])) && value.len() >= SHORTEST;
        let before = value.start - c.get(0).map_or(0, |m| m.start());
        if is_secret { [&c[0][..before], REMOVED].concat() } else { c[0].to_vec() }
    });
    *text = cleaned.into_owned();
}

fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST)))?;
    let mut text = Vec::new();
    file.take(MOST).read_to_end(&mut text)?;
    Ok(text)
}

fn packed(files: &BTreeMap<String, Vec<u8>>) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append_data(&mut header, format!("comity-report/{name}"), text.as_slice())?;
    }
    archive.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_taken_out_wherever_they_stand() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        let vars: Vec<(OsString, OsString)> = [
            ("COMITY_KEY_FILE", file.path().to_str().unwrap()),
            ("MY_API_TOKEN", "hush-hush-hush"),
            ("COMITY_RANK", "1"),
            ("NCCL_SECRET", "sh"),
            ("HOME", "/root"),
        ]
        .map(|(n, v)| (n.into(), v.into()))
        .into();
        let secrets = secrets(&vars);
        let mut text = b"a 0123456789abcdef b hush-hush-hush hush-hush-hush".to_vec();
        remove(&mut text, &secrets);
        assert_eq!(String::from_utf8(text).unwrap(), "a [removed] b [removed] [removed]");
        let shown = environment(&vars);
        assert!(shown.contains("COMITY_RANK=1\n") && shown.contains("NCCL_SECRET=[removed]"), "{shown}");
        assert!(!shown.contains("hush") && !shown.contains("HOME"), "{shown}");
    }

    #[test]
    fn what_an_output_shows_as_a_secret_is_taken_out() {
        let shown = shown_values().unwrap();
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
            ("{\\\"A_KEY\\\": \\\"abcdefghijk\\\"}", "{\\\"A_KEY\\\": \\\"[removed]\"}"),
            ("HF_TOKEN: Some(\"hf_0123456789\")", "HF_TOKEN: Some(\"[removed]\")"),
            // Not a variable, no secret, too short, a place.
            ("token: 1234567890", "token: 1234567890"),
            ("LOSS=0.123456789", "LOSS=0.123456789"),
            ("TOKENS: 12345", "TOKENS: 12345"),
            ("COMITY_KEY_FILE=/home/me/job.key", "COMITY_KEY_FILE=/home/me/job.key"),
        ] {
            let mut text = before.as_bytes().to_vec();
            remove_shown(&mut text, &shown);
            assert_eq!(String::from_utf8(text).unwrap(), after);
        }
        let mut raw = b"\xff A_TOKEN=\xfe\xfd0123456789 \xfc".to_vec();
        remove_shown(&mut raw, &shown);
        assert_eq!(raw, b"\xff A_TOKEN=[removed] \xfc", "bytes that are no text");
    }
}
