//! Completions for shells, pages for `man`, and hints for flags in the wrong place; all made from this command's definition.
use crate::say::{CommandError, Exit, say};
use clap::{
    Command,
    error::{ContextKind, ContextValue, ErrorKind},
};
use clap_complete::{Shell, generate};
use comity_launch::one_of;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
bash: comity completions bash > ~/.local/share/bash-completion/completions/comity
zsh:  comity completions zsh > a file _comity in a folder of $fpath
fish: comity completions fish > ~/.config/fish/completions/comity.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_parser = one_of(SHELLS, |name| name.parse::<Shell>().ok()))]
    shell: Shell,
}

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The folder to write comity.1, comity-launch.1 and the others to
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
}

pub(crate) fn completions(args: CompletionsArgs, mut command: Command) -> Exit {
    let mut text = Vec::new();
    generate(args.shell, &mut command, "comity", &mut text);
    say(text, 0)
}

pub(crate) fn man(args: ManArgs, command: Command) -> Exit {
    let fail = |e| CommandError::usage(format!("--output {}: {e}", args.output.display()));
    pages(&args.output, command).map(|()| 0).map_err(fail)
}

fn pages(dir: &Path, command: Command) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), dir)
}

/// Takes out of an error what clap guesses wrong: flags as values, and names that are less alike than another one.
pub(crate) fn plainer(error: &mut clap::Error) {
    error.remove(ContextKind::Suggested);
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand).cloned() else { return };
    if let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand)
        && let Some(name) = names.iter().min_by_key(|name| strsim::levenshtein(&word, name)).cloned()
    {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![name]));
    }
}

/// Hint after an error about a flag that another subcommand has, or a command that is missing.
pub(crate) fn hint(error: &clap::Error, command: &Command, words: &[String]) -> Option<String> {
    if error.kind() == ErrorKind::MissingRequiredArgument && words.get(1).is_some_and(|w| w == "launch") {
        return Some(
            "hint: the command that the ranks run is missing:\n  comity launch -n 4 -- python hello.py"
                .into(),
        );
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let given = words.get(1).map(String::as_str).unwrap_or_default();
    let Some(name) = flag.strip_prefix("--").and_then(|f| f.split('=').next()) else {
        return unflagged(given, words, flag);
    };
    if given == "launch" && matches!(name, "np" | "nproc" | "nproc-per-node" | "nproc_per_node") {
        return Some("hint: the number of ranks is -n N; with --hosts it counts for each host".into());
    }
    if let Some(said) = hosts_elsewhere(given, name) {
        return Some(said);
    }
    let has = |c: &&Command| c.get_arguments().any(|a| a.get_long() == Some(name) && !a.is_hide_set());
    let owners: Vec<&Command> = command.get_subcommands().filter(|c| !c.is_hide_set()).filter(has).collect();
    let is_sub = command.get_subcommands().any(|c| c.get_name() == given);
    // What the launcher starts, or nothing that is known.
    let is_started = !is_sub || matches!(given, "launch" | "check" | "bench" | "info");
    if is_started && owners.iter().any(|c| c.get_name() == "launch") {
        let rest = if is_sub && given != "launch" { format!("comity {given} ...") } else { "CMD ...".into() };
        return Some(format!(
            "hint: --{name} is for the launcher, and stands before the command that it starts:\n  comity launch --{name} ... -- {rest}"
        ));
    }
    let mut owners: Vec<String> = owners.iter().map(|c| format!("`comity {}`", c.get_name())).collect();
    owners.extend(inner_owner(command, name));
    if !owners.is_empty() {
        return Some(format!("hint: --{name} is a flag of {}", owners.join(" and ")));
    }
    // clap has named a flag that is near.
    if error.get(ContextKind::SuggestedArg).is_some() {
        return None;
    }
    let of = if is_sub { format!("comity {given}") } else { "comity".into() };
    Some(format!("hint: `{of} --help` lists the flags"))
}

/// The one part of a part, such as `cluster config`, that has this flag.
fn inner_owner(command: &Command, name: &str) -> Option<String> {
    let has = |c: &&Command| c.get_arguments().any(|a| a.get_long() == Some(name) && !a.is_hide_set());
    let inner = |outer: &Command| {
        let all = outer.get_subcommands().filter(has);
        all.map(|c| format!("`comity {} {}`", outer.get_name(), c.get_name())).collect::<Vec<_>>()
    };
    let mut all = command.get_subcommands().flat_map(inner);
    all.next().filter(|_| all.next().is_none())
}

/// Hosts that are named where a command takes them otherwise, or has no use for them.
fn hosts_elsewhere(command: &str, flag: &str) -> Option<String> {
    if !matches!(flag, "hosts" | "hostfile") {
        return None;
    }
    Some(match command {
        "top" | "stacks" => {
            format!("hint: hosts are named without a flag: comity {command} a,b, or comity {command} HOSTFILE")
        }
        "key" => "hint: hosts are named without a flag: comity key copy a b".into(),
        "plan" => "hint: comity plan runs nothing, and asks no hosts; --hosts N says over how many the ranks are dealt".into(),
        "report" => {
            "hint: comity report reads files of this machine; --log-dir of `comity launch` gathers what all hosts' ranks say".into()
        }
        _ => return None,
    })
}

/// A word that looks like hosts where they need a flag.
fn unflagged(command: &str, words: &[String], word: &str) -> Option<String> {
    let takes = command == "cluster" && words.get(2).is_some_and(|w| w == "find" || w == "config");
    if !takes || word.starts_with('-') {
        return None;
    }
    let flag = if Path::new(word).is_file() { "--hostfile" } else { "--hosts" };
    let word = comity_cluster::printable(word, 80);
    let rest = words.get(2).map(String::as_str).unwrap_or_default();
    Some(format!("hint: comity cluster {rest} {flag} {word}"))
}

/// Hint on arguments of a command that look as if they were meant for the launcher.
pub(crate) fn misplaced(command: &[String], has_hosts: bool) -> Option<String> {
    let is = |word: &String, flag: &str| {
        word == flag || word.strip_prefix(flag).is_some_and(|r| r.starts_with('='))
    };
    let flag = ["--hosts", "--hostfile"].into_iter().find(|f| command.iter().any(|w| is(w, f)))?;
    let program = comity_cluster::printable(command.first()?, 80);
    (!has_hosts).then(|| {
        format!(
            "hint: {flag} stands after the command and goes to the command, so the ranks run on this host; \
             for the launcher write it first: comity launch {flag} ... -- {program}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::{CommandFactory, Parser};

    fn hinted(words: &[&str]) -> Option<String> {
        let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        hint(&Cli::try_parse_from(&words).unwrap_err(), &Cli::command(), &words)
    }

    #[test]
    fn a_flag_of_another_part_is_told_where_it_belongs() {
        let said = hinted(&["comity", "bench", "--hosts", "a,b"]).unwrap();
        assert!(said.contains("comity launch --hosts ... -- comity bench ..."), "{said}");
        let said = hinted(&["comity", "--hostfile=x", "launch", "true"]).unwrap();
        assert!(said.contains("comity launch --hostfile ... -- CMD ..."), "{said}");
        let said = hinted(&["comity", "launch", "--svg", "true"]).unwrap();
        assert!(said.contains("`comity plan`"), "{said}");
        for (word, flag) in [("doctor", "--auto-setup"), ("launch", "--over=ring"), ("launch", "--undo")] {
            let said = hinted(&["comity", word, flag]).unwrap();
            assert!(said.ends_with("is a flag of `comity cluster config`"), "{said}");
        }
        let said = hinted(&["comity", "doctor", "--svg", "x"]).unwrap();
        assert!(said.ends_with("`comity plan` and `comity cluster config`"), "{said}");
        for (words, part) in [
            (["comity", "top", "--hosts"], "comity top a,b, or"),
            (["comity", "stacks", "--hostfile=x"], "comity stacks HOSTFILE"),
            (["comity", "plan", "--hostfile"], "runs nothing"),
            (["comity", "report", "--hosts"], "--log-dir"),
        ] {
            let said = hinted(&words).unwrap();
            assert!(said.contains(part) && !said.contains("comity launch --host"), "{words:?}: {said}");
        }
        let said = hinted(&["comity", "key", "copy", "--hosts", "a"]).unwrap();
        assert!(said.contains("comity key copy a b"), "{said}");
        let said = hinted(&["comity", "cluster", "config", "a,b"]).unwrap();
        assert!(said.ends_with("comity cluster config --hosts a,b"), "{said}");
        let said = hinted(&["comity", "man", "--cwd", "x"]).unwrap();
        assert_eq!(said, "hint: --cwd is a flag of `comity launch`");
        for (words, list) in [
            (&["comity", "bench", "--nonsense"][..], "`comity bench --help` lists"),
            (&["comity", "launch", "--nosuch", "--", "true"], "`comity launch --help` lists"),
            (&["comity", "report", "--hostfil", "x"], "`comity report --help` lists"),
            (&["comity", "--nosuch"], "`comity --help` lists"),
        ] {
            let said = hinted(words).unwrap();
            assert!(said.contains(list), "{said}");
        }
        assert_eq!(hinted(&["comity", "bench", "--sizes", "x"]), None);
    }

    #[test]
    fn a_slip_is_told_what_is_near_and_no_more() {
        let told = |words: &[&str]| {
            let mut error = Cli::try_parse_from(words).unwrap_err();
            plainer(&mut error);
            error.to_string()
        };
        let said = told(&["comity", "lanch"]);
        assert!(
            said.contains("'launch'") && !said.contains("'plan'") && !said.contains("as a value"),
            "{said}"
        );
        let said = told(&["comity", "launch", "--restarts", "3", "true"]);
        assert!(said.contains("--restarts") && !said.contains("as a value"), "{said}");
        let said = told(&["comity", "launch", "-np", "4", "true"]);
        assert!(said.contains("mpirun's -np is -n here"), "{said}");
        let said = hinted(&["comity", "launch", "-n", "4"]).unwrap();
        assert!(said.ends_with("comity launch -n 4 -- python hello.py"), "{said}");
    }

    #[test]
    fn hosts_behind_the_command_are_noticed() {
        let words = |w: &[&str]| w.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let said = misplaced(&words(&["python", "train.py", "--hosts", "a,b"]), false).unwrap();
        assert!(said.contains("comity launch --hosts ... -- python"), "{said}");
        assert_eq!(misplaced(&words(&["python", "--hosts=a"]), true), None);
        assert_eq!(misplaced(&words(&["python", "--hostsx"]), false), None);
    }

    #[test]
    fn every_subcommand_has_a_page_and_completions_name_it() {
        let dir = tempfile::tempdir().unwrap();
        pages(dir.path(), Cli::command()).unwrap();
        for name in ["", "-launch", "-top", "-stacks", "-key", "-bench"] {
            assert!(dir.path().join(format!("comity{name}.1")).exists(), "{name}");
        }
        let page = std::fs::read_to_string(dir.path().join("comity-launch.1")).unwrap();
        assert!(page.contains("hostfile") && page.contains(".TH"), "{page}");
        assert!(!dir.path().join("comity-guard.1").exists());
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            generate(shell, &mut Cli::command(), "comity", &mut text);
            let text = String::from_utf8(text).unwrap();
            for word in ["launch", "hostfile", "stacks", "completions"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }
}
