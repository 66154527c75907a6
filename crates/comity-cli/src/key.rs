//! `comity key`: job keys for ranks that no launcher of Comity's starts.
use crate::launch::check_host_name;
use comity::Key;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What `comity key` takes.
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
        ssh_arg: Vec<String>,
    },
}

/// Runs the command and returns the exit code.
pub(crate) fn key(command: KeyCommand) -> u8 {
    let done = match command {
        KeyCommand::New { file } => new(&file).map(|()| println!("{}", file.display())).map_err(|e| vec![e]),
        KeyCommand::Copy { hosts, file, ssh_arg } => copy(&hosts, &file, &ssh_arg),
    };
    match done {
        Ok(()) => 0,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("comity key: {problem}"));
            2
        }
    }
}

fn new(path: &Path) -> Result<(), String> {
    let fail = |e: String| format!("{}: {e}", path.display());
    let key = Key::random().map_err(|e| fail(e.to_string()))?;
    let mut file = match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            return Err(fail("is there already; give another name, or remove it".into()));
        }
        Err(e) => return Err(fail(e.to_string())),
    };
    file.write_all(key.bytes()).map_err(|e| fail(e.to_string()))
}

/// To all hosts at once; what went wrong with each.
fn copy(hosts: &[String], file: &Path, ssh_args: &[String]) -> Result<(), Vec<String>> {
    let mut wrong: Vec<String> = hosts.iter().filter_map(|h| check_host_name(h).err()).collect();
    let key = Key::from_file(file).map_err(|e| wrong.push(e.to_string())).ok();
    let name = file
        .to_str()
        .filter(|n| !n.contains('\''))
        .ok_or_else(|| "the file's name is no plain text".to_owned());
    let name = name.map_err(|e| wrong.push(e)).unwrap_or_default();
    let (Some(key), true) = (key, wrong.is_empty()) else { return Err(wrong) };
    // In a new file, so that nobody has opened it before.
    let remote = format!("exec sh -c 'umask 077; rm -f -- \"$1\"; cat > \"$1\"' sh '{name}'");
    let running: Vec<(&String, io::Result<Child>)> = hosts
        .iter()
        .map(|host| {
            let mut ssh = Command::new("ssh");
            ssh.arg("-T").args(ssh_args).args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--"]);
            ssh.args([host, &remote]).stdin(Stdio::piped());
            (host, ssh.spawn())
        })
        .collect();
    for (host, child) in running {
        let sent = child.and_then(|mut child| {
            // Taken, so that its end is seen.
            let told = child.stdin.take().map(|mut to| to.write_all(key.bytes()));
            child.wait().and_then(|status| told.unwrap_or(Ok(())).map(|()| status))
        });
        match sent {
            Ok(status) if status.success() => println!("{host}: {name}"),
            Ok(status) => wrong.push(format!("host {host}: the key was not copied: ssh ended with {status}")),
            Err(e) => wrong.push(format!("host {host}: the key was not copied: {e}")),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
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
        let wrong = copy(&hosts, Path::new("/nowhere/key"), &[]).unwrap_err();
        assert!(
            wrong.len() == 3 && wrong[0].contains("begin with '-'") && wrong[2].contains("/nowhere/key"),
            "{wrong:?}"
        );
    }
}
