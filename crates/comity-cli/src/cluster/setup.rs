//! Running the steps of a setup on all hosts or on none, and undoing them.
use super::team::{HostTeam, ReachArgs};
use super::whole::ANSWER;
use super::{BAD_INPUT, FAULTY, Trouble, usage};
use crate::agent::{AgentOrder, PairAnswer};
use crate::launch::FleetHost;
use comity_cluster::commands::{HostSetup, UndoFile, typed};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Runs all steps; how many. When one fails, those before it are undone.
pub(super) fn apply(team: &mut HostTeam, setups: &[HostSetup], undo: &Path) -> Result<usize, Vec<String>> {
    let wrong = refused(team, setups);
    if !wrong.is_empty() {
        return Err(wrong);
    }
    // Before anything is done, so that it can be undone whatever happens to this program.
    write_new(undo, &UndoFile::new(setups.to_vec())).map_err(|e| vec![format!("{}: {e}", undo.display())])?;
    let mut done: Vec<(&HostSetup, usize)> = Vec::new();
    for setup in setups {
        for (at, step) in setup.steps.iter().enumerate() {
            match run(team, &setup.ssh, &step.run) {
                Ok(_) => done.push((setup, at)),
                Err(why) => return Err(take_back(team, &done, undo, format!("host {}: {why}", setup.ssh))),
            }
        }
    }
    Ok(done.len())
}

/// Who cannot run commands as root.
fn refused(team: &mut HostTeam, setups: &[HostSetup]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (_, member) in team.there() {
        if !setups.iter().any(|s| s.ssh == member.host.name) {
            continue;
        }
        let name = &member.host.name;
        if let Err(why) = &member.agent {
            wrong.push(format!("host {name}: {why}"));
        } else if member.facts.root != Some(true) {
            wrong.push(format!(
                "host {name}: its user cannot run sudo without a password, so nothing was done on any host: allow it (NOPASSWD in sudoers), or run the commands by hand, without --auto-setup"
            ));
        }
    }
    wrong
}

/// Undoes what was done; the sentences for it.
fn take_back(team: &mut HostTeam, done: &[(&HostSetup, usize)], file: &Path, why: String) -> Vec<String> {
    let mut said = vec![why];
    let mut left = 0;
    for (setup, at) in done.iter().rev() {
        let undo = &setup.steps[*at].undo;
        if !undo.is_empty()
            && let Err(why) = run(team, &setup.ssh, undo)
        {
            left += 1;
            said.push(format!("host {}: {} could not be undone: {why}", setup.ssh, typed(undo, false)));
        }
    }
    if left == 0 {
        let _ = std::fs::remove_file(file);
        said.push(format!("the {} commands before it were undone: all hosts are as they were", done.len()));
    } else {
        said.push(format!("what is left is in {}", file.display()));
    }
    said
}

fn run(team: &mut HostTeam, ssh: &str, words: &[String]) -> Result<String, String> {
    let Some((_, member)) = team.there().find(|(_, m)| m.host.name == ssh) else {
        return Err("it is not there".into());
    };
    let order = AgentOrder::Run { words: words.to_vec(), root: member.facts.is_root };
    let answer: PairAnswer = member.told(&order, ANSWER)?;
    if answer.is_ok { Ok(answer.said) } else { Err(answer.said) }
}

fn write_new(path: &Path, file: &UndoFile) -> std::io::Result<()> {
    let mut to = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    to.write_all(format!("{}\n", serde_json::to_string_pretty(file)?).as_bytes())?;
    to.sync_all()
}

/// Undoes what a file says, if it still fits every host.
pub(super) fn undo(path: &Path, dry_run: bool, reach: &ReachArgs) -> Result<(), Trouble> {
    let text = std::fs::read_to_string(path).map_err(|e| usage(format!("{}: {e}", path.display())))?;
    let file = UndoFile::parse(&text).map_err(|e| usage(format!("{}: {e}", path.display())))?;
    // A hostfile may know more than a name: a port.
    let named = reach.named().map_err(|all| (BAD_INPUT, all))?;
    let known = |ssh: &str| named.iter().find(|h| h.name == ssh).cloned();
    let host = |ssh: &str| known(ssh).map_or_else(|| FleetHost::named(ssh), Ok);
    let hosts: Result<Vec<_>, _> = file.hosts.iter().map(|h| host(&h.ssh)).collect();
    let hosts = hosts.map_err(|e| usage(format!("{}: {e}", path.display())))?;
    let mut team = HostTeam::gather(&hosts, &reach.way.way());
    let absent = team.absent();
    if !absent.is_empty() {
        return Err((FAULTY, absent));
    }
    let misfit = |(_, m): (usize, &mut super::Member)| {
        let setup = file.hosts.iter().find(|s| s.ssh == m.host.name)?;
        UndoFile::misfit(setup, &m.facts)
    };
    let mut wrong: Vec<_> = team.there().filter_map(misfit).collect();
    if !wrong.is_empty() {
        wrong.push(format!("{}: nothing was undone", path.display()));
        return Err((BAD_INPUT, wrong));
    }
    let wrong = refused(&mut team, &file.hosts);
    if !wrong.is_empty() && !dry_run {
        return Err((FAULTY, wrong));
    }
    let mut failed = Vec::new();
    for setup in file.hosts.iter().rev() {
        for step in setup.steps.iter().rev().filter(|s| !s.undo.is_empty()) {
            println!("{}: {}", setup.ssh, typed(&step.undo, false));
            if !dry_run && let Err(why) = run(&mut team, &setup.ssh, &step.undo) {
                failed.push(format!("host {}: {why}", setup.ssh));
            }
        }
    }
    if !failed.is_empty() {
        return Err((FAULTY, failed));
    }
    if !dry_run {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}
