//! The command line of `ssh` for a host.
use super::hosts::FleetHost;
use crate::host::meet::local_toward;
use comity_cluster::{checks::INSTALL, printable};
use std::ffi::OsString;
use std::net::{IpAddr, ToSocketAddrs};
use std::process::{Command, Stdio};

/// Way by which hosts are reached.
#[derive(Clone, Debug)]
pub struct SshOptions {
    /// The program that is run as `ssh`.
    pub ssh: OsString,
    /// Arguments before all others.
    pub args: Vec<OsString>,
    /// An interpreter that may have the Python package.
    pub python: Option<String>,
    /// The folder of this program's copies on hosts that have none of its version; none where it is not copied.
    pub copies: Option<String>,
    /// Another version will do.
    pub any_version: bool,
}

/// Command on the other host.
#[derive(Clone, Copy, Debug)]
pub struct FarCommand<'a> {
    /// The words after `comity`.
    pub words: &'a [&'a str],
    /// A script for `sh` where there is no `comity`.
    pub otherwise: &'a str,
}

/// A host's part of a job.
pub(super) const HOST_LAUNCHER: FarCommand<'static> = FarCommand { words: &["guard"], otherwise: "" };

/// Script on the other host, where `$1` is the path of this program, `$2` its version (empty where any will do) and `$3` the folder of its
/// copies (empty where it is not copied), `$4` an interpreter, `$5` a script and the rest arguments: the same program, else the command, else the Python
/// package, else a copy that is there or that the launcher sends, else another version, which says so, else the script.
const FIND: &str = r#"own=$1; version=$2; folder=$3; python=$4; otherwise=$5; shift 5; other=; package=;
fits() { [ -z "$version" ] || [ "$("$@" --version 2>/dev/null </dev/null)" = "comity $version" ]; };
for c in "$own" comity; do command -v "$c" >/dev/null 2>&1 || continue;
fits "$c" && exec "$c" "$@"; other=${other:-$c}; done;
if command -v "$python" >/dev/null 2>&1 && "$python" -c "import comity" 2>/dev/null; then
fits "$python" -m comity && exec "$python" -m comity "$@"; package=1; fi;
if [ -n "$folder" ]; then dir=${XDG_CACHE_HOME:-$HOME/.cache}/comity/$folder; c=$dir/comity;
[ -x "$c" ] && fits "$c" && exec "$c" "$@";
printf '\000comity-lacks %s %s\000' "$(uname -s)" "$(uname -m)"; read -r size || exit 127;
if [ "$size" -gt 0 ]; then new=$c.$(uname -n).$$;
(umask 077; mkdir -p "$dir" && head -c "$size" >"$new" && [ "$(wc -c <"$new")" -eq "$size" ] && chmod 700 "$new" &&
"$new" --version >/dev/null </dev/null && mv -f "$new" "$c") && exec "$c" "$@";
rm -f "$new"; echo comity-was-not-kept >&2; exit 127; fi; fi;
[ -z "$other" ] || exec "$other" "$@"; [ -z "$package" ] || exec "$python" -m comity "$@";
echo comity-is-not-here >&2; [ -z "$otherwise" ] || exec sh -c "$otherwise"; exit 127"#;

/// Last output of [`FIND`].
pub(super) const NOT_THERE: &str = "comity-is-not-here";

/// Its output when a copy came to nothing.
const NOT_KEPT: &str = "comity-was-not-kept";

/// The command that starts this one on that host.
pub fn command(options: &SshOptions, host: &FleetHost, command: &FarCommand<'_>) -> Command {
    if host.is_here() {
        let mut own = crate::own_program::own_words().unwrap_or_default().into_iter();
        let mut here = Command::new(own.next().unwrap_or_default());
        here.args(own).args(command.words);
        return here;
    }
    let own = std::env::current_exe().unwrap_or_default();
    let own = own.to_str().filter(|p| p.ends_with("/comity")).unwrap_or("comity");
    let python = host.python.as_deref().or(options.python.as_deref()).unwrap_or("python3");
    let quoted = |word: &str| format!("'{}'", word.replace('\'', "'\\''"));
    let copies = options.copies.as_deref().unwrap_or_default();
    let version = if options.any_version { "" } else { crate::VERSION };
    let given =
        [own, version, copies, python, command.otherwise].into_iter().chain(command.words.iter().copied());
    let given: Vec<_> = given.map(quoted).collect();
    let far = format!("exec sh -c {} sh {}", quoted(&FIND.replace('\n', " ")), given.join(" "));
    let mut ssh = reach(options, host, Some("-T"));
    ssh.args(["--", &host.name, &far]);
    ssh
}

/// `ssh` and its options for a host, without the host.
fn reach(options: &SshOptions, host: &FleetHost, first: Option<&str>) -> Command {
    let mut ssh = Command::new(&options.ssh);
    // The first value that ssh is given for an option holds.
    ssh.args(first).args(&options.args);
    ssh.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR"]);
    if let Some(port) = host.port {
        ssh.arg("-p").arg(port.to_string());
    }
    if let Some(identity) = &host.identity {
        ssh.arg("-i").arg(identity);
    }
    ssh
}

/// The address of this machine from which packets to the first of these hosts leave whose name means something here; else what is said of
/// each.
pub(super) fn towards_any<'a>(
    options: &SshOptions,
    hosts: impl Iterator<Item = &'a FleetHost>,
) -> Result<Option<IpAddr>, Vec<String>> {
    let mut wrong = Vec::new();
    for host in hosts {
        match towards(options, host) {
            Ok(at) => return Ok(Some(at)),
            Err(why) => wrong.push(why),
        }
    }
    if wrong.is_empty() { Ok(None) } else { Err(wrong) }
}

/// The address of this machine from which packets to that host leave.
fn towards(options: &SshOptions, host: &FleetHost) -> Result<IpAddr, String> {
    let mut ssh = reach(options, host, None);
    // The user's configuration may have another name for it.
    let said = ssh.args(["-G", "--", &host.name]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let said =
        said.map_err(|e| format!("host {}: cannot start '{}': {e}", host.name, options.ssh.display()))?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let plain = host.name.rsplit('@').next().unwrap_or_default();
    let named = said.lines().find_map(|l| l.strip_prefix("hostname ")).unwrap_or(plain).trim();
    let to = (named, 9).to_socket_addrs().map_err(|e| {
        format!(
            "host {}: no host has this name ({named:?}: {e}); check the spelling, or give it a HostName in ~/.ssh/config. \
             If ssh alone knows it, by a jump host say, name with --meet-at an address of this machine that the hosts can reach",
            host.name
        )
    })?;
    let mut last = std::io::Error::other("the name has no address");
    for to in to {
        match local_toward(to) {
            Ok(own) => return Ok(own.ip()),
            Err(e) => last = e,
        }
    }
    Err(format!(
        "host {}: this machine has no way to it ({last}); say --meet-at ADDRESS, one of this machine's that the hosts can reach",
        host.name
    ))
}

/// Sentence for an `ssh` that came to nothing, with what mends it.
pub fn explained(host: &str, said: &str, code: &str) -> String {
    let has = |part: &str| said.contains(part);
    let absent = format!("comity is not installed there: {INSTALL}");
    let not_kept = format!(
        "this program could not be copied there (is there room in ~/.cache, and does it run there?): {INSTALL}"
    );
    let mend = if has(NOT_THERE) {
        &absent
    } else if has(NOT_KEPT) {
        &not_kept
    } else if has("Could not resolve hostname") || has("Name or service not known") {
        "no host has this name; check the spelling, or give it a HostName in ~/.ssh/config"
    } else if has("REMOTE HOST IDENTIFICATION HAS CHANGED") {
        "its host key has changed: if that was expected, `ssh-keygen -R` its name and connect once by hand"
    } else if has("Host key verification failed") {
        "its host key is not known here: connect once by hand (`ssh` and its name) and accept the key"
    } else if has("Permission denied (") {
        "it does not let this user in without a password: `ssh-copy-id` to it, or name the user (user@host)"
    } else if has("Connection refused") {
        "nothing answers at ssh's port: is sshd running there, and on which port (port in the hostfile)?"
    } else if has("timed out") || has("No route to host") || has("unreachable") {
        "it cannot be reached: is it up, and does no firewall stand before ssh's port?"
    } else {
        "try by hand: ssh, the host's name and `true`"
    };
    let last = said
        .lines()
        .map(str::trim)
        .rfind(|l| !l.is_empty() && !l.contains(NOT_THERE) && !l.contains(NOT_KEPT));
    let last = last.map(|l| format!(" ({})", printable(l, 300)));
    format!("host {host}: {mend}{}; {code}", last.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_names_the_host_and_the_mend() {
        for (said, part) in [
            ("ssh: Could not resolve hostname c: Name or service not known", "check the spelling"),
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                "ssh-keygen -R",
            ),
            ("Host key verification failed.", "accept the key"),
            ("me@c: Permission denied (publickey).", "ssh-copy-id"),
            ("ssh: connect to host c port 22: Connection refused", "is sshd running"),
            ("ssh: connect to host c port 22: Connection timed out", "firewall"),
            ("sh: 1: python3: not found\ncomity-is-not-here", "name it with --python"),
            (
                "head: write error: No space left on device\ncomity-was-not-kept",
                "(head: write error: No space left",
            ),
            ("", "by hand"),
        ] {
            let text = explained("c", said, "ssh exited with code 255");
            assert!(text.starts_with("host c: ") && text.contains(part), "{text}");
        }
    }
}
