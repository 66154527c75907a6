//! Lines of ranks: whole, tagged, in order, whoever reads them and however slowly.
use super::harness::*;
use rustix::process::Signal;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn ten_thousand_lines_of_four_ranks_never_mix() {
    let text = "i=0; while [ $i -lt 10000 ]; do echo \"line $i of $RANK: abcdefghijklmnopqrstuvwxyz\"; i=$((i+1)); done";
    for flags in [&["--tag-output"][..], &["--tag-output=never"]] {
        let done = script(4, flags, text).ends(0);
        let mut next = [0; 4];
        for line in done.out.lines() {
            let bare = if flags[0] == "--tag-output" { line.split_once("] ").unwrap().1 } else { line };
            let rank: usize = bare.split(['f', ':']).nth(1).unwrap().trim().parse().unwrap();
            assert_eq!(bare, format!("line {} of {rank}: abcdefghijklmnopqrstuvwxyz", next[rank]));
            if flags[0] == "--tag-output" {
                assert!(line.starts_with(&format!("[{rank}] ")));
            }
            next[rank] += 1;
        }
        assert_eq!(next, [10000; 4]);
    }
}

#[test]
fn both_streams_in_one_pipe_do_not_mix() {
    let (reader, writer) = std::io::pipe().unwrap();
    let text = "i=0; while [ $i -lt 3000 ]; do echo out out out; echo err err err >&2; i=$((i+1)); done";
    let job =
        start_with(&["-n", "3", "sh", "-c", text], |c| c.stdout(writer.try_clone().unwrap()).stderr(writer));
    let collect = std::thread::spawn(move || {
        let mut reader = reader;
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        all
    });
    assert_eq!(job.finish().code, 0);
    let all = collect.join().unwrap();
    assert_eq!(all.lines().count(), 18000);
    assert!(all.lines().all(|l| ["out out out", "err err err"].contains(&l.split_once("] ").unwrap().1)));
}

#[test]
fn streams_stay_apart_and_the_last_line_needs_no_end() {
    let done = script(2, &[], "printf 'to out'; printf 'to err' >&2");
    assert_eq!(done.sorted(), ["[0] to out", "[1] to out"]);
    let mut err: Vec<&str> = done.err.lines().collect();
    err.sort_unstable();
    assert_eq!(err, ["[0] to err", "[1] to err"]);
    assert!(done.out.ends_with('\n'));
    // A single rank's bytes are its own.
    assert_eq!(run(&["printf", "no end"]).out, "no end");
    assert_eq!(run(&["--tag-output", "printf", "a\\nb"]).out, "[0] a\n[0] b\n");
}

#[test]
fn lines_and_characters_in_pieces_are_whole() {
    for (pieces, whole) in [
        ("printf abc; sleep 0.3; printf def; sleep 0.3; echo ghi", "abcdefghi"),
        ("printf '\\303'; sleep 0.2; printf '\\244\\n'", "ä"),
    ] {
        assert_eq!(script(2, &[], pieces).sorted(), [format!("[0] {whole}"), format!("[1] {whole}")]);
    }
    assert_eq!(run(&["sh", "-c", "printf '\\303'; sleep 0.2; printf '\\244'"]).out, "ä");
}

#[test]
fn all_that_was_written_before_the_end_arrives() {
    for _ in 0..10 {
        let done = script(3, &[], "head -c 60000 /dev/zero | tr '\\0' x; echo; exit 3").ends(3);
        assert_eq!(done.out.bytes().filter(|&b| b == b'x').count(), 180_000);
    }
}

#[test]
fn a_slow_reader_loses_nothing_and_signals_still_work() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let job = start_with(&["-n", "3", "sh", "-c", "yes | head -n 500000; echo end"], |c| c.stdout(writer));
    std::thread::sleep(Duration::from_millis(500));
    let mut total = 0;
    let mut ends = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = reader.read(&mut buffer).unwrap();
        if n == 0 {
            break;
        }
        total += n;
        ends += buffer[..n].iter().filter(|&&b| b == b'e').count();
        if total < 300_000 {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert_eq!(job.finish().code, 0);
    assert_eq!((total, ends), (3 * (500_000 * 6 + 8), 3));
}

#[test]
fn a_reader_that_takes_nothing_does_not_keep_a_job_alive() {
    let (_reader, writer) = std::io::pipe().unwrap();
    let job = start_with(&["-n", "2", "yes"], |c| c.stdout(writer));
    job.wait_running("yes", 2);
    std::thread::sleep(Duration::from_millis(300));
    job.signal(Signal::INT);
    let done = job.finish().ends(130);
    assert!(done.took < patient(Duration::from_secs(45)), "{:?}", done.took);
}

#[test]
fn a_reader_that_left_ends_the_job() {
    let (reader, writer) = std::io::pipe().unwrap();
    let job = start_with(&["-n", "2", "yes"], |c| c.stdout(writer));
    job.wait_running("yes", 2);
    drop(reader);
    let done = job.finish().ends(141);
    assert_eq!(done.last(), "comity launch: ended because nobody reads standard output any more");
}

#[test]
fn logs_hold_what_ranks_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("new/logs");
    let done =
        script(3, &["--log-dir", logs.to_str().unwrap()], "echo out $RANK; echo err $RANK >&2; printf tail");
    assert_eq!((done.code, done.out.lines().count()), (0, 6));
    for rank in 0..3 {
        let read = |end| std::fs::read_to_string(logs.join(format!("rank-{rank}.{end}"))).unwrap();
        assert_eq!(read("out"), format!("out {rank}\ntail"));
        assert_eq!(read("err"), format!("err {rank}\n"));
    }
}

#[test]
fn with_logs_a_job_outlives_its_reader() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let logs = dir.path().to_str().unwrap();
    let text = "i=0; while [ $i -lt 1000 ]; do echo $i; i=$((i+1)); done";
    let job = start_with(&["-n", "2", "--log-dir", logs, "sh", "-c", text], |c| c.stdout(writer));
    assert_eq!(job.finish().code, 0);
    let log = std::fs::read_to_string(dir.path().join("rank-1.out")).unwrap();
    assert_eq!(log.lines().count(), 1000);
}

#[test]
fn closed_streams_are_no_reason_to_hang() {
    let comity = COMITY;
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("exec {comity} launch -n 2 -- sh -c 'cat; echo hi' <&- >&- 2>&-")]);
    let mut child = shell.stdin(Stdio::null()).spawn().unwrap();
    let status = wait_for("the end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}
