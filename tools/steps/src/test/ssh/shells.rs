//! Login shells that are no Bourne shell, as users choose them on their own hosts: ssh hands each command to the login shell there.

use super::{Net, loses_a_rank, net, server};
use crate::test::{Done, Outcome, missing, processes::comity, ssh::net::Cabling};
use std::fs;
use tasks::place::{Scratch, program};

/// Words that mean something in one of these shells.
const ODD: [&str; 5] = ["it's", "a \"b\" $HOME `id`", "!1 !!", "* ~ {a,b}", "back\\slash ; & | < >"];

/// Jobs on hosts where these shells are root's: a job, words that shells like to change, a rank that is killed.
pub(in crate::test) fn check() -> Outcome {
    let sshd = match server() {
        Ok(sshd) => sshd,
        Err(why) => return missing(why),
    };
    let shells = ["fish", "tcsh"].map(|name| (name, program(name)));
    let absent: Vec<_> = shells.iter().filter(|s| s.1.is_none()).map(|s| s.0).collect();
    if !absent.is_empty() {
        return missing(format!("there is no {} (packages fish and tcsh)", absent.join(" and no ")));
    }
    let scratch = Scratch::new("ssh-shells").map_err(|e| e.to_string())?;
    let net = match net::hosts(&scratch, &sshd, Cabling::Switch) {
        Ok(net) => net,
        Err(e) => return missing(format!("hosts cannot be made here: {e}")),
    };
    let comity = comity()?;
    let comity = comity.to_str().ok_or("the program's path is no text")?;
    let users = fs::read_to_string(scratch.join("passwd")).map_err(|e| e.to_string())?;
    for (name, shell) in shells.iter().filter_map(|(name, at)| Some((name, at.as_ref()?))) {
        // In its place, which the servers have mounted.
        net.write("passwd", &with_shell(&users, &shell.display().to_string()))?;
        let about = |e| format!("{name}: {e}");
        speaks(&net, name).map_err(about)?;
        passes_words(&net, comity).map_err(about)?;
        loses_a_rank(&net, comity).map_err(about)?;
        net.clean().map_err(about)?;
    }
    Ok(Done::Passed("login shells fish and tcsh".into()))
}

/// The table of users with this shell for root.
fn with_shell(users: &str, shell: &str) -> String {
    let line = |line: &str| match line.rsplit_once(':') {
        Some((rest, _)) if line.starts_with("root:") => format!("{rest}:{shell}\n"),
        _ => format!("{line}\n"),
    };
    users.lines().map(line).collect()
}

/// The login shell is that one: else this tries nothing.
fn speaks(net: &Net, shell: &str) -> Result<(), String> {
    let said = net.on("a", "sh -c 'cat /proc/$PPID/comm'; true")?;
    if said.contains(shell) { Ok(()) } else { Err(format!("the login shell is another one: {said}")) }
}

/// Words and variables come as they were given.
fn passes_words(net: &Net, comity: &str) -> Result<(), String> {
    let variable = format!("ODD={}", ODD.join("|"));
    let show = "printf '%s|' \"$ODD\" \"$@\"; echo";
    let words = [&["sh", "-c", show, "sh"][..], &ODD].concat();
    let said = net.launch_with(comity, &["--env", &variable], &words)?.wait()?;
    let wanted = format!("{0}|{0}|", ODD.join("|"));
    match said.lines().filter(|l| l.ends_with(&wanted)).count() {
        3 => Ok(()),
        n => Err(format!("{n} of 3 ranks got the words {wanted:?}:\n{said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::with_shell;

    #[test]
    fn root_alone_gets_the_shell() {
        let users = "root:x:0:0:root:/home:/bin/bash\nsshd:x:1:2::/run:/usr/sbin/nologin\n";
        let with = with_shell(users, "/usr/bin/fish");
        assert_eq!(with, users.replace("/bin/bash", "/usr/bin/fish"));
    }
}
