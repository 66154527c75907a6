//! Running the steps of a setup on all hosts or on none, and undoing them.
use super::team::{HostTeam, ReachArgs};
use crate::cluster::agent::{AgentOrder, PairAnswer};
use crate::save;
use crate::say::{CommandError, FAULTY, USAGE, say};
use comity_cluster::commands::{HostSetup, typed};
use comity_cluster::commands::{UndoFile, UndoWork};
use comity_launch::fleet::{FleetHost, all_or_wrong};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs all steps; how many. When one fails, those before it are undone.
pub(super) fn apply(
    team: &mut HostTeam,
    setups: &[HostSetup],
    undo: &Path,
    reach: &ReachArgs,
) -> Result<usize, CommandError> {
    let faulty = |problems| CommandError { code: FAULTY, problems };
    CommandError::if_any(FAULTY, refused(team, |ssh| setups.iter().any(|s| s.ssh == ssh)))?;
    make_way(undo, team)?;
    // Before anything is done, so that it can be undone whatever happens to this program.
    let stop = stopped().map_err(|e| CommandError::faulty(format!("cannot wait for signals: {e}")))?;
    let text = serde_json::to_string_pretty(&UndoFile::new(setups.to_vec()));
    text.map_err(Into::into)
        .and_then(|text| save::create(undo, format!("{text}\n").as_bytes(), save::FOR_USER))
        .map_err(|e: std::io::Error| {
            CommandError::faulty(format!("{}: {e}; nothing was done", undo.display()))
        })?;
    let mut done: Vec<(&HostSetup, usize)> = Vec::new();
    for setup in setups {
        for (at, step) in setup.steps.iter().enumerate() {
            let ended = run(team, &setup.ssh, &step.run);
            // Ctrl-C ends ssh as well, so the signal is looked at first.
            if stop.load(Ordering::Acquire) {
                return Err(faulty(roll_back(undo, reach)));
            }
            match ended {
                Ok(_) => done.push((setup, at)),
                Err(why) => {
                    return Err(faulty(take_back(team, &done, undo, format!("host {}: {why}", setup.ssh))));
                }
            }
        }
    }
    Ok(done.len())
}

/// Set by a signal that is to end this program; a second one ends it.
fn stopped() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, FAULTY.into(), Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Undoes, over new connections, what had been run when a signal came; the sentences for it.
fn roll_back(file: &Path, reach: &ReachArgs) -> Vec<String> {
    let tell = |line: &str| {
        // After a hangup there may be nobody to read it.
        let _ = writeln!(std::io::stderr(), "{line}");
        Ok(())
    };
    let _ = tell("interrupted: what was run is being undone");
    match undo_by(file, false, reach, &tell) {
        Ok(()) => {
            vec!["it was interrupted, and what had been run was undone: all hosts are as they were".into()]
        }
        Err(CommandError { mut problems, .. }) => {
            let file = file.display();
            problems
                .push(format!("it was interrupted; what is left is in {file}: comity cluster undo {file}"));
            problems
        }
    }
}

/// Sentences for those of the `wanted` hosts that cannot run commands as root.
fn refused(team: &mut HostTeam, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (_, member) in team.there() {
        if !wanted(&member.host.name) {
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
    let answer: PairAnswer = member.ask(&order)?;
    if answer.is_ok { Ok(answer.said) } else { Err(answer.said) }
}

/// Work left to undo on each host of the file, or sentences for those that cannot be undone.
fn left(team: &mut HostTeam, file: &UndoFile) -> Result<Vec<(String, UndoWork)>, Vec<String>> {
    all_or_wrong(file.hosts.iter().map(|setup| {
        let Some((_, member)) = team.there().find(|(_, m)| m.host.name == setup.ssh) else {
            return Err(format!("host {} is not among those that were asked", setup.ssh));
        };
        Ok((setup.ssh.clone(), setup.left(&member.facts)?))
    }))
}

/// Puts an undo file of before aside that has nothing to undo any more, as after a restart of its hosts; any other is in the way.
fn make_way(path: &Path, team: &mut HostTeam) -> Result<(), CommandError> {
    let at = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(CommandError::usage(format!("{at}: {e}"))),
    };
    let remaining = UndoFile::parse(&text).and_then(|file| {
        let work = left(team, &file).map_err(|all| all.join("; "))?;
        let busy = work.iter().filter(|(_, w)| !w.commands.is_empty());
        let busy: Vec<_> = busy.map(|(ssh, _)| ssh.as_str()).collect();
        let why = || format!("what it undoes is still there on {}", busy.join(", "));
        if busy.is_empty() { Ok(()) } else { Err(why()) }
    });
    remaining.map_err(|why| {
        CommandError::usage(format!(
            "{at} is there already, and {why}: undo it first (comity cluster undo {at}), or name another file with --undo"
        ))
    })?;
    // Not removed: by the same names other hosts may be meant now.
    let mut aside = path.as_os_str().to_owned();
    aside.push(".old");
    let aside = PathBuf::from(aside);
    std::fs::rename(path, &aside).map_err(|e| CommandError::usage(format!("{at}: {e}")))?;
    eprintln!("{at} has nothing to undo any more, as after a restart: it is now {}", aside.display());
    Ok(())
}

/// Undoes what of a file is still there, if nobody changed it since.
pub(super) fn undo(path: &Path, dry_run: bool, reach: &ReachArgs) -> Result<(), CommandError> {
    undo_by(path, dry_run, reach, &|line| say(format!("{line}\n"), 0).map(drop))
}

/// The same; each command is told by `tell`.
fn undo_by(
    path: &Path,
    dry_run: bool,
    reach: &ReachArgs,
    tell: &dyn Fn(&str) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let fail = |e: String| CommandError::usage(format!("{}: {e}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let file = UndoFile::parse(&text).map_err(fail)?;
    // A hostfile may know more than a name: a port.
    let named = reach.named()?;
    let known = |ssh: &str| named.iter().find(|h| h.name == ssh).cloned();
    let host = |ssh: &str| known(ssh).map_or_else(|| FleetHost::named(ssh), Ok);
    let hosts: Result<Vec<_>, _> = file.hosts.iter().map(|h| host(&h.ssh)).collect();
    let hosts = hosts.map_err(fail)?;
    let mut team = HostTeam::gather(&hosts, &reach.ssh.options());
    CommandError::if_any(FAULTY, team.absent())?;
    let work = left(&mut team, &file).map_err(|mut problems| {
        problems.push(format!("{}: nothing was undone", path.display()));
        CommandError { code: USAGE, problems }
    })?;
    for note in work.iter().flat_map(|(_, w)| &w.notes) {
        let _ = writeln!(std::io::stderr(), "{note}");
    }
    let busy = |ssh: &str| work.iter().any(|(name, w)| name == ssh && !w.commands.is_empty());
    if !dry_run {
        CommandError::if_any(FAULTY, refused(&mut team, busy))?;
    }
    let mut failed = Vec::new();
    let mut unread = Ok(());
    for (ssh, work) in work.iter().rev() {
        for undo in &work.commands {
            // Where nobody can read it, it is done all the same.
            let told = tell(&format!("{ssh}: {}", typed(undo, false)));
            unread = unread.and(told);
            if !dry_run && let Err(why) = run(&mut team, ssh, undo) {
                failed.push(format!("host {ssh}: {why}"));
            }
        }
    }
    CommandError::if_any(FAULTY, failed)?;
    if !dry_run {
        let _ = std::fs::remove_file(path);
    }
    unread
}
