//! The `comity` command as a library: [`run`] takes the arguments and returns the exit code, so that
//! other front ends (a Python entry point, a test) can offer the same command.
mod bench;
mod check;
mod child;
mod cluster;
mod doctor;
mod here;
mod info;
mod join;
mod key;
mod launch;
mod manual;
mod plan;
mod report;
mod save;
mod say;
mod selftest;
mod size;
mod top;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use comity_launch::{http, live, own_program};
use std::{ffi::OsString, io::Write, path::PathBuf};

#[derive(Debug, Parser)]
#[command(name = "comity", version, about = "Collective communication for machine learning")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// One variant per subcommand; each lives in its own module with its arguments and one function that runs it.
#[derive(Debug, Subcommand)]
enum Command {
    /// Start N copies of a command as the ranks of one group, on this machine or on several
    Launch(Box<launch::LaunchArgs>),
    /// Start a command that joins a job which runs (comity launch --elastic)
    Join(join::JoinArgs),
    /// A host's part of a job that a launcher elsewhere started: it talks over standard input and output
    #[command(hide = true)]
    Guard,
    /// A host's part of `comity cluster` and `comity doctor`: it talks over standard input and output
    #[command(hide = true)]
    Agent(cluster::agent::AgentArgs),
    /// Find hosts and cables, give them addresses, write a hostfile
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Say what is wrong with hosts and the cables between them
    Doctor(doctor::DoctorArgs),
    /// Make a job key, or copy one to other hosts
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Check every operation, type and awkward size against a scalar reference
    Check(check::CheckArgs),
    /// Run on this machine what the project's tests run: links, backends, packages; write a report for an issue
    Selftest(selftest::SelftestArgs),
    /// Measure how long operations take, and their bandwidth
    Bench(bench::BenchArgs),
    /// Say what was found in the environment, and what links would be used
    Info(info::InfoArgs),
    /// Show what an operation would do: steps, bytes and predicted time
    Plan(plan::PlanArgs),
    /// Say who was where when a job failed, from the records that its ranks left
    Report(report::ReportArgs),
    /// Show a live job: ranks, calls, links, who waits for whom; also one that hangs
    Top(top::TopArgs),
    /// Print where each rank of a live job is: its last calls, and for whom it waits
    Stacks(top::StacksArgs),
    /// Print completions for a shell
    Completions(manual::CompletionsArgs),
    /// Write man pages
    Man(manual::ManArgs),
}

/// The same within a Python interpreter, which knows this command as the module `comity`: the command starts itself for some jobs.
pub fn run_in(interpreter: PathBuf, args: impl IntoIterator<Item = OsString>) -> u8 {
    own_program::is_run_by(interpreter);
    run(args)
}

/// A rank says what the library warns of, such as a third rank that passes on what it says.
fn tell_warnings() {
    // In an interpreter that listens already the answer is no.
    comity::tools::on_warning(|words| {
        // Nobody may read it.
        let _ = writeln!(std::io::stderr(), "comity: {words}");
    });
}

/// The command as clap knows it. `-h` shows the flags that most jobs need, and `--help` all.
fn definition() -> clap::Command {
    Cli::command().mut_subcommands(|command| match command.get_after_help().cloned() {
        Some(more) => command.after_long_help(more).after_help(None::<&str>),
        None => command,
    })
}

/// The command that was asked for, with its name.
fn parse(args: &[OsString]) -> Result<(Cli, String), clap::Error> {
    let mut matches = definition().try_get_matches_from(args)?;
    let name = matches.subcommand_name().unwrap_or_default().to_owned();
    Ok((Cli::from_arg_matches_mut(&mut matches)?, name))
}

/// Runs `comity` with these arguments (the first is the program's name) and returns the exit code.
///
/// Call it from the main thread before other threads are started: `comity launch` forks.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let (cli, name) = match parse(&args) {
        Ok(parsed) => parsed,
        Err(mut e) => {
            manual::plainer(&mut e);
            // A closed terminal is no reason to change the exit code; help that is lost is.
            let shown = say::taken(e.print());
            let words: Vec<String> = args.iter().map(|a| a.to_string_lossy().into_owned()).collect();
            if let Some(hint) = manual::hint(&e, &definition(), &words) {
                let _ = writeln!(std::io::stderr(), "\n{hint}");
            }
            let code = u8::try_from(e.exit_code()).unwrap_or(2);
            return match shown {
                Err(say::CommandError { code, problems }) if !e.use_stderr() => {
                    let _ = writeln!(std::io::stderr(), "comity: {}", problems.concat());
                    code
                }
                _ => code,
            };
        }
    };
    if matches!(cli.command, Command::Check(_) | Command::Bench(_)) {
        tell_warnings();
    }
    let done = match cli.command {
        Command::Launch(args) => launch::launch(*args),
        Command::Join(args) => join::join(&args),
        Command::Guard => Ok(comity_launch::fleet::host_launcher()),
        Command::Agent(args) => cluster::agent::agent(args),
        Command::Cluster(command) => cluster::cluster(command),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Key(command) => key::key(command),
        Command::Check(args) => check::check(args),
        Command::Selftest(args) => selftest::selftest(args),
        Command::Bench(args) => bench::bench(args),
        Command::Info(args) => info::info(args),
        Command::Plan(args) => plan::plan(args),
        Command::Report(args) => report::report(args),
        Command::Top(args) => top::top(args),
        Command::Stacks(args) => top::stacks(args),
        Command::Completions(args) => manual::completions(args, definition()),
        Command::Man(args) => manual::man(args, definition()),
    };
    done.unwrap_or_else(|trouble| trouble.tell(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_help_is_short() {
        for mut command in definition().get_subcommands().cloned() {
            let [short, long] =
                [command.render_help(), command.render_long_help()].map(|help| help.to_string());
            assert!(short.lines().count() <= 45, "comity {} -h: {short}", command.get_name());
            let more = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let first = more.lines().next().unwrap_or("Print help");
            assert!(long.contains(first) && (more.is_empty() || !short.contains(first)), "{short}");
        }
        let mut launch = definition().find_subcommand("launch").unwrap().clone();
        let [short, long] = [launch.render_help(), launch.render_long_help()].map(|help| help.to_string());
        for (flag, is_short) in [("--hosts", true), ("--grace", true), ("--connections-per-ip", false)] {
            assert_eq!((short.contains(flag), long.contains(flag)), (is_short, true), "{flag}");
        }
    }
}
