//! Login shells that are no Bourne shell, as users choose them on their own hosts: ssh hands each command to the login shell there.

use super::{Net, loses_a_rank};
use crate::test::{
    jobs::{has, timed},
    requirements::Ask,
    scope::Scope,
    sshd::{SERVER, SWITCH},
    step::Outcome,
};
use scope::Rng;
use tasks::place::{Scratch, program, read};

pub(in crate::test) const ASKS: &[Ask] = &[
    Ask::Linux,
    Ask::Root,
    Ask::Program("ssh", "openssh-client"),
    Ask::Program("fish", "fish"),
    Ask::Program("tcsh", "tcsh"),
    SERVER,
];

/// Words that mean something in one of these shells.
const ODD: [&str; 5] = ["it's", "a \"b\" $HOME `id`", "!1 !!", "* ~ {a,b}", "back\\slash ; & | < >"];

/// Jobs on hosts where these shells are root's: a job, words that shells like to change, a rank that is killed.
pub(in crate::test) fn check(scope: &Scope) -> Outcome {
    let scratch = Scratch::new("ssh-shells")?;
    let net = Net::new("ssh", &scratch, &SWITCH)?;
    let users = read(scratch.join("passwd"))?;
    for name in ["fish", "tcsh"] {
        let shell = program(name).ok_or_else(|| format!("there is no {name}"))?;
        // In its place, which the servers have mounted.
        let root = users.lines().find_map(|l| l.strip_prefix("root:")?.rsplit_once(':')).ok_or("no root")?;
        let is = format!("{}:{}\n", root.0, shell.display());
        net.write("passwd", &users.replacen(&format!("{}:{}\n", root.0, root.1), &is, 1))?;
        timed(name, || {
            // Else this tries nothing.
            has(&net.on("a", "sh -c 'cat /proc/$PPID/comm'; true")?, &[name])?;
            passes_words(&net)?;
            loses_a_rank(&net, &mut Rng::new(scope.seed))?;
            net.clean()
        })?;
    }
    Ok("login shells fish and tcsh".into())
}

/// Words and variables come as they were given.
fn passes_words(net: &Net<'_>) -> Result<(), String> {
    let variable = format!("ODD={}", ODD.join("|"));
    let show = "printf '%s|' \"$ODD\" \"$@\"; echo";
    let words = [&["sh", "-c", show, "sh"][..], &ODD].concat();
    let said = net.launch(&["--env", &variable], &words)?.wait()?;
    let wanted = format!("{0}|{0}|", ODD.join("|"));
    match said.lines().filter(|l| l.ends_with(&wanted)).count() {
        3 => Ok(()),
        n => Err(format!("{n} of 3 ranks got the words {wanted:?}:\n{said}")),
    }
}
