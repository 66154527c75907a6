//! Orders that change this host, or look into a file of it.
use aws_lc_rs::hmac;
use comity::Key;
use comity_cluster::commands::is_step;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs one of the few programs that steps are made of.
pub(super) fn run(words: &[String], root: bool) -> Result<String, String> {
    if !is_step(words) {
        return Err(format!("{words:?} is nothing that a step of comity runs"));
    }
    let sudo: &[&str] = if root { &[] } else { &["sudo", "-n", "--"] };
    let all: Vec<&str> = sudo.iter().copied().chain(words.iter().map(String::as_str)).collect();
    let (program, args) = all.split_first().ok_or("no command")?;
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let done = Command::new(program).args(args).env("PATH", path).stdin(Stdio::null()).output();
    let done = done.map_err(|e| format!("{}: {e}", all.join(" ")))?;
    let said = String::from_utf8_lossy(&done.stderr).trim().chars().take(300).collect::<String>();
    match done.status.success() {
        true => Ok(said),
        false => Err(format!("`{}` ended with {}: {said}", all.join(" "), done.status)),
    }
}

/// A proof of which key this host has, by which the key itself is not known: it is another for each nonce.
pub(crate) fn key(file: Option<&str>, nonce: &str) -> Result<String, String> {
    let from_variable = || std::env::var_os("COMITY_KEY_FILE").map(PathBuf::from);
    let path = file.map(PathBuf::from).or_else(from_variable);
    let path = path.ok_or("there is no COMITY_KEY_FILE in the environment of a login there")?;
    let key = Key::from_file(&path).map_err(|e| e.to_string())?;
    let by = hmac::Key::new(hmac::HMAC_SHA256, key.bytes());
    let tag = hmac::sign(&by, format!("comity doctor {nonce}").as_bytes());
    Ok(tag.as_ref().iter().map(|b| format!("{b:02x}")).collect())
}
