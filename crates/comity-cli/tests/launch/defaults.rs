//! Variables that ranks get unless the user has set them: threads, and output at once.
use super::harness::*;
use super::hosts::Hosts;
use std::process::Command;

const THREAD_CHOICES: [&str; 4] =
    ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"];
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

/// The command without these variables of this test's own shell, and with `env`.
fn clean<'a>(command: &'a mut Command, env: &[(&str, &str)]) -> &'a mut Command {
    THREAD_CHOICES.iter().chain([&UNBUFFERED]).for_each(|name| {
        command.env_remove(name);
    });
    command.envs(env.iter().copied())
}

/// The launcher's own words, and each rank's number of threads, where it has one.
fn threads(flags: &[&str], env: &[(&str, &str)]) -> (String, Vec<Option<usize>>) {
    let words =
        [flags, &["--tag-output=never", "--", "sh", "-c", "echo threads ${OMP_NUM_THREADS:-none}"]].concat();
    let done = start_with(&words, |command| clean(command, env)).finish().ends(0);
    let all = done.out.lines().filter_map(|l| l.strip_prefix("threads ")).map(|n| n.parse().ok()).collect();
    (done.err, all)
}

#[test]
fn a_job_without_a_number_of_ranks_says_how_many_it_has() {
    let said = |flags: &[&str]| start(&[flags, &["--", "true"]].concat()).finish().err;
    assert_eq!(said(&[]), "comity launch: 1 rank; -n N starts N\n");
    assert_eq!(said(&["-n", "1"]), "");
}

#[test]
fn ranks_share_the_cores_of_their_host() {
    let one = threads(&["-n", "1"], &[]).1[0].unwrap();
    let most = std::thread::available_parallelism().unwrap().get();
    assert!((1..=most).contains(&one), "{one} of {most}");
    assert_eq!(threads(&["-n", "2"], &[]).1, vec![Some((one / 2).max(1)); 2]);
    assert_eq!(threads(&["-n", "64"], &[]).1, vec![Some((one / 64).max(1)); 64]);
    let (said, _) = threads(&["-n", "2", "--verbose"], &[]);
    assert_eq!(said.matches(" for each rank: ").count(), 1, "{said}");
    let hosts = Hosts::new();
    let (said, all) = threads(&["--ssh", &hosts.ssh, "--hosts", "a:2,b", "--verbose"], &[]);
    assert_eq!(all.iter().flatten().sum::<usize>(), 2 * (one / 2).max(1) + one, "{all:?}");
    for host in [
        "host a: OMP_NUM_THREADS=",
        &format!("host b: OMP_NUM_THREADS={one} and RAYON_NUM_THREADS={one} for each"),
    ] {
        assert_eq!(said.matches(host).count(), 1, "{said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_bound_rank_has_the_threads_of_its_cores() {
    assert_eq!(threads(&["-n", "1", "--bind-to", "core"], &[]).1, [Some(1)]);
}

#[test]
fn a_choice_of_the_user_stays() {
    for name in THREAD_CHOICES {
        let chosen = if name == "OMP_NUM_THREADS" { Some(7) } else { None };
        assert_eq!(threads(&["-n", "2"], &[(name, "7")]).1, [chosen; 2], "{name}");
        let flag = format!("{name}=7");
        assert_eq!(threads(&["-n", "2", "--env", &flag], &[]).1, [chosen; 2], "{name}");
    }
}

#[test]
fn mpi_s_launcher_hands_them_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mpirun");
    let say =
        "[ $1 = --version ] && echo 'mpirun (Open MPI) 5.0.5' || echo $OMP_NUM_THREADS $PYTHONUNBUFFERED";
    write_program(&path, say);
    let done = start_with(&["-n", "4096", "--backend", "mpi", "--", "true"], |command| {
        clean(command, &[]).env("COMITY_MPIRUN", &path)
    });
    assert_eq!(done.finish().out, "1 1\n");
}

/// Output of a rank that runs this program of Python's, and the exit code.
fn python(flags: &[&str], env: &[(&str, &str)], program: &str) -> (String, i32) {
    let words = [&["--tag-output"], flags, &["--", "python3", "-c", program]].concat();
    let done = start_with(&words, |command| clean(command, env)).finish();
    let lines: Vec<_> = done.out.lines().filter_map(|l| l.strip_prefix("[0] ")).collect();
    (lines.join("|"), done.code)
}

#[test]
fn last_words_are_shown_however_a_rank_ends() {
    if !works(Command::new("python3").arg("--version")) {
        return;
    }
    let dying = |how: &str| format!("import os, time\nprint('epoch', 1)\nprint('half', end='')\n{how}");
    let shown = |code| ("epoch 1|half".to_owned(), code);
    for (how, code) in
        [("os.kill(os.getpid(), 9)", 137), ("os.kill(os.getpid(), 11)", 139), ("os._exit(3)", 3)]
    {
        assert_eq!(python(&[], &[], &dying(how)), shown(code), "{how}");
    }
    // On a busy machine Python takes its time to start.
    let is_shown = |limit| python(&["--timeout", limit], &[], &dying("time.sleep(100)")) == shown(124);
    assert!(["1", "3", "10"].into_iter().any(is_shown), "before a timeout nothing is shown");
    // The way off.
    let quick = dying("os._exit(3)");
    assert_eq!(python(&[], &[(UNBUFFERED, "")], &quick), (String::new(), 3));
    assert_eq!(python(&["--env", "PYTHONUNBUFFERED=0"], &[], &quick), (String::new(), 3));
}
