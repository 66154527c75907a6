//! `comity key`: job keys for ranks that no launcher of Comity's starts.
use crate::{
    save,
    say::{CommandError, Exit, USAGE, say},
};
use comity::Key;
use comity_launch::fleet::{check_host_name, explain_ssh};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key in a new file that only you can read
    New {
        /// The file; one that exists is left alone
        #[arg(default_value = "job.key")]
        file: PathBuf,
    },
    /// Copy a key to other hosts over ssh, under the same name, where only you can read it
    Copy {
        /// The hosts, as ssh takes them
        #[arg(required = true, value_name = "HOST")]
        hosts: Vec<String>,
        /// The key's file; relative to your home directory there
        #[arg(long, default_value = "job.key")]
        file: PathBuf,
        /// Hand this to ssh, before its other arguments (repeatable)
        #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
        ssh_arg: Vec<OsString>,
        /// The program that is run as ssh
        #[arg(long, value_name = "PROGRAM", default_value = "ssh")]
        ssh: OsString,
    },
}

pub(crate) fn key(command: KeyCommand) -> Exit {
    let done = match command {
        KeyCommand::New { file } => new(&file).map(|()| format!("{}\n", file.display())).map_err(|e| vec![e]),
        KeyCommand::Copy { hosts, file, ssh_arg, ssh } => copy(&hosts, &file, &ssh, &ssh_arg),
    };
    say(done.map_err(|problems| CommandError { code: USAGE, problems })?, 0)
}

fn new(path: &Path) -> Result<(), String> {
    let fail = |e: String| format!("{}: {e}", path.display());
    let key = Key::random().map_err(|e| fail(e.to_string()))?;
    save::create(path, key.bytes(), save::FOR_USER).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => fail("is there already; give another name, or remove it".into()),
        _ => fail(e.to_string()),
    })
}

/// To all hosts at once: a line for each, or what went wrong with each. What was copied is told in both cases.
fn copy(hosts: &[String], file: &Path, ssh: &OsString, args: &[OsString]) -> Result<String, Vec<String>> {
    let mut wrong: Vec<String> = hosts.iter().filter_map(|h| check_host_name(h).err()).collect();
    let key = Key::from_file(file).map_err(|e| wrong.push(e.to_string())).ok();
    let name = file
        .to_str()
        .filter(|n| !n.contains('\''))
        .ok_or_else(|| "the file's name is no plain text".to_owned());
    let name = name.map_err(|e| wrong.push(e)).unwrap_or_default();
    match (key, wrong.is_empty()) {
        (Some(key), true) => send(hosts, &key, name, ssh, args),
        _ => Err(wrong),
    }
}

/// Under this name, to all hosts at once.
fn send(
    hosts: &[String],
    key: &Key,
    name: &str,
    ssh: &OsString,
    args: &[OsString],
) -> Result<String, Vec<String>> {
    let mut wrong = Vec::new();
    let mut there = String::new();
    // In a new file, so that nobody has opened it before; it has the name when it is whole. The end of an ssh that was killed ends `cat`, too.
    let remote = format!(
        "exec sh -c 'umask 077; cat > \"$1.$$\" && [ \"$(wc -c < \"$1.$$\")\" -eq {} ] && mv -f -- \"$1.$$\" \"$1\" || {{ rm -f -- \"$1.$$\"; exit 1; }}' sh '{name}'",
        key.bytes().len()
    );
    let running: Vec<(&String, io::Result<Child>)> = hosts
        .iter()
        .map(|host| {
            let mut command = Command::new(ssh);
            command.arg("-T").args(args).args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--"]);
            command.args([host, &remote]).stdin(Stdio::piped()).stderr(Stdio::piped());
            (host, command.spawn())
        })
        .collect();
    for (host, child) in running {
        let sent = child.and_then(|mut child| {
            // Taken, so that its end is seen.
            let told = child.stdin.take().map(|mut to| to.write_all(key.bytes()));
            let ended = child.wait_with_output()?;
            // Who does not take it says why.
            if ended.status.success() { told.unwrap_or(Ok(())).map(|()| ended) } else { Ok(ended) }
        });
        match sent {
            Ok(ended) if ended.status.success() => there += &format!("{host}: {name}\n"),
            Ok(ended) => wrong.push(not_copied(host, &ended)),
            Err(e) => wrong.push(format!("host {host}: the key was not copied: {e}")),
        }
    }
    if wrong.is_empty() {
        return Ok(there);
    }
    wrong.extend(say(there, 0).err().into_iter().flat_map(|e| e.problems));
    Err(wrong)
}

/// Sentence for a key that was not copied to `host`, from the output of ssh or of the host.
fn not_copied(host: &str, ended: &Output) -> String {
    let said = String::from_utf8_lossy(&ended.stderr);
    // By this code it is ssh that failed.
    if ended.status.code() == Some(255) {
        return explain_ssh(host, &said, &format!("the key was not copied: ssh ended with {}", ended.status));
    }
    let last = said.lines().rfind(|l| !l.trim().is_empty()).unwrap_or_default();
    let last = comity_cluster::printable(last, 300);
    format!(
        "host {host}: the key was not written there ({last}): is the directory there, with room, and may this user write to it?"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_private_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        new(&file).unwrap();
        let first = *Key::from_file(&file).unwrap().bytes();
        assert!(new(&file).unwrap_err().contains("is there already"));
        assert_eq!(*Key::from_file(&file).unwrap().bytes(), first);
    }

    #[test]
    fn no_host_is_an_option_and_every_problem_is_told() {
        let hosts = ["-oProxyCommand=x".to_owned(), "a b".to_owned()];
        let wrong = copy(&hosts, Path::new("/nowhere/key"), &"ssh".into(), &[]).unwrap_err();
        assert!(
            wrong.len() == 3 && wrong[0].contains("begin with '-'") && wrong[2].contains("/nowhere/key"),
            "{wrong:?}"
        );
    }

    #[test]
    fn a_key_comes_whole_or_not_and_what_failed_is_told() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let ssh = dir.path().join("ssh");
        let script = format!(
            "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\n[ $2 != c ] || {{ echo 'ssh: Could not resolve hostname c' >&2; exit 255; }}\n\
             cd {}/$2 && exec sh -c \"$3\"\n",
            dir.path().display()
        );
        std::fs::write(&ssh, script).unwrap();
        std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).unwrap();
        for host in ["a", "b"] {
            std::fs::create_dir(dir.path().join(host)).unwrap();
        }
        let key = Key::random().unwrap();
        let ssh = ssh.into_os_string();
        let sent = |name: &str| send(&["a", "b", "c"].map(String::from), &key, name, &ssh, &[]);
        let wrong = sent("job.key").unwrap_err();
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].starts_with("host c: no host has this name; check the spelling"), "{wrong:?}");
        // There already: it is replaced.
        assert_eq!(sent("job.key").unwrap_err().len(), 1);
        for host in ["a", "b"] {
            let there = dir.path().join(host).join("job.key");
            assert_eq!(std::fs::metadata(&there).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(Key::from_file(&there).unwrap().bytes(), key.bytes());
            assert_eq!(std::fs::read_dir(dir.path().join(host)).unwrap().count(), 1, "no other file is left");
        }
        let dead = dir.path().join("dead");
        let script =
            "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\ncd DIR/$2 && head -c 5 | sh -c \"$3\"\n";
        std::fs::write(&dead, script.replace("DIR", &dir.path().display().to_string())).unwrap();
        std::fs::set_permissions(&dead, PermissionsExt::from_mode(0o755)).unwrap();
        let wrong = send(&["a".into()], &key, "half.key", &dead.into_os_string(), &[]).unwrap_err();
        assert!(wrong[0].starts_with("host a: the key was not written there"), "{wrong:?}");
        assert_eq!(std::fs::read_dir(dir.path().join("a")).unwrap().count(), 1, "half a key is none");
        let wrong = sent("no/folder/job.key").unwrap_err();
        assert!(
            wrong[0].starts_with("host a: the key was not written there (")
                && wrong[0].contains("is the directory there"),
            "{wrong:?}"
        );
    }
}
