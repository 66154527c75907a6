//! Standard input goes to every rank, and so does its end.
use super::harness::*;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

fn start_piped(args: &[&str]) -> Job {
    start_with(args, |c| c.stdin(Stdio::piped()))
}

#[test]
fn every_rank_gets_all_of_it() {
    let mut job = start_piped(&["-n", "3", "sh", "-c", "wc -c; echo end"]);
    let mut stdin = job.child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&[b'x'; 1_000_000]).unwrap());
    let done = job.finish();
    writer.join().unwrap();
    assert_eq!(done.sorted(), ["[0] 1000000", "[0] end", "[1] 1000000", "[1] end", "[2] 1000000", "[2] end"]);
}

#[test]
fn lines_arrive_while_it_stays_open() {
    let mut job = start_piped(&["-n", "2", "sh", "-c", "read a; read b; echo $a $b"]);
    let mut stdin = job.child.stdin.take().unwrap();
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
    let mut job =
        start_piped(&["-n", "2", "sh", "-c", "[ $RANK = 0 ] && exec sleep 2; head -c 1000 | wc -c"]);
    let mut stdin = job.child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        // Ends with an error when the launcher no longer reads.
        let _ = stdin.write_all(&vec![b'x'; 4 << 20]);
    });
    let done = job.finish();
    writer.join().unwrap();
    assert_eq!((done.code, done.out.as_str()), (0, "[1] 1000\n"));
}

#[test]
fn ranks_that_have_ended_do_not_keep_others_from_input() {
    let mut job = start_piped(&["-n", "3", "sh", "-c", "[ $RANK = 1 ] && exit 0; wc -c"]);
    let mut stdin = job.child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&vec![b'x'; 1 << 20]).unwrap());
    let done = job.finish();
    writer.join().unwrap();
    assert_eq!((done.code, done.sorted()), (0, vec!["[0] 1048576", "[2] 1048576"]));
}

/// A rank that reports whether it has a terminal, reads lines, and is asked to end by a key.
/// It leaves a file for each of its steps in the folder `$1`.
const TALKER: &str = "[ $RANK = 1 ] || exec sleep 1; test -t 0 && test -t 1 && test -t 2 && tty; stty size; \
     trap 'echo caught; : > $1/caught' INT; while read a || read a; do echo got $a; : > $1/$a; done; echo end";

#[test]
fn a_rank_may_have_a_terminal_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut job =
        start_piped(&["-n", "2", "--tty", "1", "sh", "-c", TALKER, "sh", folder.path().to_str().unwrap()]);
    let mut stdin = job.child.stdin.take().unwrap();
    // The key that interrupts is for the rank.
    for (bytes, file) in [(&b"one\n"[..], "one"), (b"\x03", "caught"), (b"two\n", "two")] {
        stdin.write_all(bytes).unwrap();
        wait_for(file, || folder.path().join(file).exists().then_some(()));
    }
    drop(stdin);
    let done = job.finish();
    for part in ["/dev/pts/", "24 80", "got one", "caught", "got two", "end"] {
        assert!(done.out.contains(part), "{part}: {:?} {}", done.out, done.err);
    }
    assert_eq!(done.code, 0, "{}", done.err);
    let done = run(&["-n", "2", "--tty", "2", "true"]);
    assert!(done.code == 2 && done.err.contains("--tty 2: there are 2 ranks"), "{}", done.err);
}
