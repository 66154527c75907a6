//! The variables of the ranks, from the hostfile, from files and from `--env`.
use super::all_or_wrong;
use super::hosts::FleetHost;
use crate::host::job::OURS;
use crate::request::Setting;
use std::path::{Path, PathBuf};

/// The variables of every rank: of the hostfile, then of files, then of `--env`.
pub(super) fn settings(
    (given, files): (&[Setting], &[PathBuf]),
    file: Vec<(String, String)>,
    hosts: &[FleetHost],
    wrong: &mut Vec<String>,
) -> Vec<(String, String)> {
    let mut env = file;
    for path in files {
        match env_file(path) {
            Ok(more) => env.extend(more),
            Err(more) => wrong.extend(more),
        }
    }
    let given = texts(given).map_err(|e| wrong.push(e)).unwrap_or_default();
    env.extend(given);
    let all = env.iter().chain(hosts.iter().flat_map(|h| &h.env));
    wrong.extend(all.filter_map(|var| ours(var).or_else(|| impossible(var))));
    env
}

fn texts(env: &[Setting]) -> Result<Vec<(String, String)>, String> {
    let text = |s: &Setting| Some((s.name.to_str()?.to_owned(), s.value.to_str()?.to_owned()));
    let all: Option<Vec<_>> = env.iter().map(text).collect();
    all.ok_or_else(|| "a value of --env is not UTF-8, which other hosts may not read as this one".into())
}

fn ours((name, _): &(String, String)) -> Option<String> {
    OURS.contains(&name.as_str())
        .then(|| format!("variable {name}: comity launch sets it itself for each rank; leave it out"))
}

/// Reason for which a system takes no such variable.
fn impossible((name, value): &(String, String)) -> Option<String> {
    let why = match (name.as_str(), value) {
        ("", _) => "it has no name",
        (name, _) if name.contains(['=', '\0']) => "a name holds neither '=' nor a NUL byte",
        (_, value) if value.contains('\0') => "its value holds a NUL byte",
        _ => return None,
    };
    Some(format!("variable {name:?}: {why}"))
}

/// `NAME=VALUE` lines, with comments and empty lines between them.
fn env_file(path: &Path) -> Result<Vec<(String, String)>, Vec<String>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| vec![format!("--env-file {shown}: {e}")])?;
    // Some editors put a mark before UTF-8.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().map(str::trim).enumerate();
    let one = |(at, line): (usize, &str)| match line.trim_start_matches("export ").split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            let value = value.trim();
            let bare = ['"', '\''].iter().find_map(|q| value.strip_prefix(*q)?.strip_suffix(*q));
            Ok((name.trim().to_owned(), bare.unwrap_or(value).to_owned()))
        }
        _ => Err(format!("--env-file {shown}: line {}: is not NAME=VALUE", at + 1)),
    };
    all_or_wrong(lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(one))
}

/// `"0,1"`, `[0, 1]`, `["0", "1"]` or `0`, as `CUDA_VISIBLE_DEVICES` has it.
pub(super) fn devices(text: &str) -> Option<String> {
    use serde_json::Value;
    let one = |v: &Value| v.as_u64().map(|n| n.to_string()).or_else(|| Some(v.as_str()?.to_owned()));
    match serde_json::from_str(text).ok()? {
        Value::Array(list) => Some(list.iter().map(one).collect::<Option<Vec<_>>>()?.join(",")),
        single => one(&single).map(|list| list.replace(' ', "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_variables_are_read_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "\u{feff}A=1\n# x\nexport B=\"two words\"\n\nC=\n").unwrap();
        let all = env_file(file.path()).unwrap();
        assert_eq!(all, [("A", "1"), ("B", "two words"), ("C", "")].map(|(n, v)| (n.into(), v.into())));
        std::fs::write(file.path(), "A\n=b\n").unwrap();
        let wrong = env_file(file.path()).unwrap_err();
        assert!(wrong[0].contains("line 1") && wrong[1].contains("line 2"), "{wrong:?}");
    }

    #[test]
    fn what_no_system_takes_is_refused() {
        let why = |name: &str, value: &str| impossible(&(name.into(), value.into()));
        assert!(why("", "y").is_some() && why("A=B", "x").is_some() && why("A", "z\0y").is_some());
        assert_eq!(why("A", "b=c"), None);
    }

    #[test]
    fn devices_are_written_in_some_ways() {
        let good = ["[0, 1]", "\"0,1\"", "[\"0\", \"1\"]", "3"].map(devices);
        assert_eq!(good, ["0,1", "0,1", "0,1", "3"].map(|d| Some(d.into())));
        assert_eq!(["{}", "[[0]]", "null", "-1"].map(devices), [const { None }; 4]);
    }
}
