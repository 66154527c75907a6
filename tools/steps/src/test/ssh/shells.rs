//! Login shells that are no Bourne shell, as users choose them on their own hosts: ssh hands each command to the login shell there.

use super::{Case, Net, each, loses_a_rank};
use crate::test::{jobs::has, scope::Scope, sshd::SWITCH, step::Outcome};
use scope::Rng;
use tasks::place::read;

/// Words that mean something in one of these shells.
const ODD: [&str; 5] = ["it's", "a \"b\" $HOME `id`", "!1 !!", "* ~ {a,b}", "back\\slash ; & | < >"];

/// Jobs on hosts where these shells are root's: a job, words that shells like to change, a rank that is killed.
pub(in crate::test) fn check(scope: &Scope) -> Outcome {
    let cases: [(&str, Case); 2] = [
        ("fish", |net, random| within(net, random, "fish")),
        ("tcsh", |net, random| within(net, random, "tcsh")),
    ];
    each(scope, &SWITCH, "shells", &cases)?;
    Ok("login shells fish and tcsh".into())
}

fn within(net: &Net<'_>, random: &mut Rng, name: &str) -> Result<(), String> {
    let users = read(net.folder.join("passwd"))?;
    let root = users.lines().find(|l| l.starts_with("root:")).ok_or("there is no root")?;
    let (rest, _) = root.rsplit_once(':').unwrap_or_default();
    // In its place, which the servers have mounted.
    net.write("passwd", &users.replacen(root, &format!("{rest}:/usr/bin/{name}"), 1))?;
    // Else this tries nothing.
    has(&net.on("a", "sh -c 'cat /proc/$PPID/comm'; true")?, &[name])?;
    passes_words(net)?;
    loses_a_rank(net, random)
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
