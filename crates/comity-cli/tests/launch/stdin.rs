//! Standard input goes to every rank, and so does its end.
use super::harness::*;
use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

fn start_piped(args: &[&str]) -> (Job, ChildStdin) {
    let mut job = start_with(args, |c| c.stdin(Stdio::piped()));
    let stdin = job.child.stdin.take().unwrap();
    (job, stdin)
}

/// The end of three ranks or two that run this script, and get so many bytes; whether all were taken.
fn fed(n: &str, script: &str, bytes: usize) -> (Ended, bool) {
    let (job, mut stdin) = start_piped(&["-n", n, "sh", "-c", script]);
    let writer = std::thread::spawn(move || stdin.write_all(&vec![b'x'; bytes]).is_ok());
    let done = job.finish().ends(0);
    (done, writer.join().unwrap())
}

#[test]
fn every_rank_gets_all_of_it_whoever_has_ended() {
    for (script, said) in [
        (
            "wc -c; echo end",
            &["[0] 1000000", "[0] end", "[1] 1000000", "[1] end", "[2] 1000000", "[2] end"][..],
        ),
        ("[ $RANK = 1 ] && exit 0; wc -c", &["[0] 1000000", "[2] 1000000"]),
    ] {
        let (done, is_whole) = fed("3", script, 1_000_000);
        assert!(is_whole);
        assert_eq!(done.sorted(), said);
    }
}

#[test]
fn lines_arrive_while_it_stays_open() {
    let (job, mut stdin) = start_piped(&["-n", "2", "sh", "-c", "read a; read b; echo $a $b"]);
    stdin.write_all(b"one\n").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    stdin.write_all(b"two\n").unwrap();
    let done = job.finish();
    drop(stdin);
    assert_eq!((done.code, done.sorted()), (0, vec!["[0] one two", "[1] one two"]));
}

#[test]
fn no_input_is_an_end_at_once() {
    assert_eq!(script(2, &[], "cat; echo end").sorted(), ["[0] end", "[1] end"]);
}

#[test]
fn a_rank_that_does_not_read_holds_up_nothing_but_input() {
    // The end of the writing is an error when the launcher no longer reads.
    let (done, _) = fed("2", "[ $RANK = 0 ] && exec sleep 2; head -c 1000 | wc -c", 4 << 20);
    assert_eq!(done.out, "[1] 1000\n");
}

/// A rank that reports whether it has a terminal, reads lines, and is asked to end by a key.
/// It leaves a file for each of its steps in the folder `$1`.
const TALKER: &str = "[ $RANK = 1 ] || exec sleep 1; test -t 0 && test -t 1 && test -t 2 && tty; stty size; \
     trap 'echo caught; : > $1/caught' INT; while read a || read a; do echo got $a; : > $1/$a; done; echo end";

#[test]
fn a_rank_may_have_a_terminal_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    let (job, mut stdin) = start_piped(&["-n", "2", "--tty", "1", "sh", "-c", TALKER, "sh", at]);
    // The key that interrupts is for the rank.
    for (bytes, file) in [(&b"one\n"[..], "one"), (b"\x03", "caught"), (b"two\n", "two")] {
        stdin.write_all(bytes).unwrap();
        wait_for(file, || folder.path().join(file).exists().then_some(()));
    }
    drop(stdin);
    job.finish().ends(0).shows(&["/dev/pts/", "24 80", "got one", "caught", "got two", "end"]);
}
