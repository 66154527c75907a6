//! `comity report` on what the ranks of a real job leave when one of them is killed; `refusals` has files that no rank wrote.

mod common;

use comity::ReduceOp;
use common::{Ended, Meeting, comity, holds, lacks, launch, read_json, run_comity, this_test};
use rustix::process::{Signal, getpid, kill_process};
use std::{
    env, fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

const ROLE: &str = "REPORT_TEST_ROLE";

/// All-reduces without end; rank 1 is killed in the middle.
fn act() -> comity::Error {
    let group = comity::init().unwrap();
    let half = group.split(Some((group.rank() % 2) as i32), 0).unwrap().unwrap();
    let mut x = vec![1f32; 1000];
    for i in 0.. {
        if group.rank() == 1 && i == 50 {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        let done = half.barrier().and_then(|()| group.all_reduce(&mut x, ReduceOp::Sum));
        if let Err(e) = done {
            return e;
        }
    }
    unreachable!()
}

#[test]
fn a_killed_rank_is_named_from_the_records_of_the_others() {
    if env::var_os(ROLE).is_some() {
        eprintln!("{}", act());
        std::process::exit(1);
    }
    // The launcher gives the survivors a second to tell, which on a crowded machine may be too short for one of them, now and then.
    let all = ["rank-0.group-0.flight.json", "rank-2.group-0.flight.json"];
    let told = (0..5).any(|_| {
        let dir = tempfile::tempdir().unwrap();
        let flights = killed_job(&dir.path().join("logs"));
        let is_whole = flights == all;
        if is_whole {
            read_records(dir.path());
        } else {
            assert!(flights.iter().all(|f| all.contains(&f.as_str())), "{flights:?}");
        }
        is_whole
    });
    assert!(told, "never did both survivors leave a record");
}

/// A job of which one rank is killed, with its logs here: what the survivors left of the whole group.
fn killed_job(logs: &Path) -> Vec<String> {
    fs::create_dir(logs).unwrap();
    // An earlier job's, which must not be taken for this one's.
    fs::write(logs.join("rank-1.group-0.flight.json"), "old").unwrap();
    let at = logs.to_str().unwrap();
    let rank = this_test("a_killed_rank_is_named_from_the_records_of_the_others");
    let mut job = launch(&["-n", "3", "--timeout", "60", "--log-dir", at], &rank);
    let job = Ended::of(job.env(ROLE, "1")).ends(137);
    job.says(&["comity launch: rank 1 left no record"]);
    holds(job.last(), &["rank 1 (pid"]);
    let mut flights = flights(logs);
    flights.retain(|f| f.contains(".group-0."));
    flights
}

/// Checks the report on the job above from the records in `dir/logs`.
fn read_records(dir: &Path) {
    let logs = dir.join("logs");
    let trace = dir.join("trace.json");
    let at = logs.to_str().unwrap();
    let told = run_comity(&["report", at, "--trace", trace.to_str().unwrap()]).ends(0);
    assert_eq!(told.err, "", "{}", told.out);
    let first = told.out.lines().next().unwrap();
    assert!(first.starts_with("rank 1 left no record (killed"), "{}", told.out);
    holds(first, &[" for it in all_reduce #", "f32[1000] sum"]);
    told.shows(&["group of ranks 0-2; cause, as rank ", "first: rank 1 (host "]);
    let trace = read_json(&fs::read_to_string(trace).unwrap());
    let calls = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X");
    assert!(calls.clone().count() >= 100, "{trace}");
    assert!(calls.clone().all(|c| c["pid"] == 0 || c["pid"] == 2));
    assert!(calls.clone().any(|c| c["args"]["state"] == "failed" && c["args"]["waited_for"] == 1));
}

fn flights(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|n| n.contains("flight")).collect();
    names.sort();
    names
}

const IDLE: &str = "ranks_that_make_no_further_call_leave_a_record_as_they_leave";
const LONG: Duration = Duration::from_secs(60);

/// The whole group's record of `rank`.
fn record(dir: &Path, rank: usize) -> PathBuf {
    dir.join(format!("rank-{rank}.group-0.flight.json"))
}

/// Rank 1 is killed; rank 0 is told by its call, ranks 2 and 3 make none. With `how` "well" nobody is killed.
fn leave(how: &str, dir: &Path) {
    let group = comity::init().unwrap();
    group.barrier().unwrap();
    // Nobody is in the barrier any more when rank 1 is killed.
    let past = |rank: usize| dir.join(format!("past-{rank}"));
    fs::write(past(group.rank()), "").unwrap();
    match group.rank() {
        _ if how == "well" => group.close().unwrap(),
        1 => {
            let until = Instant::now() + LONG;
            while (0..4).any(|rank| !past(rank).exists()) && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        0 => {
            group.barrier().unwrap_err();
            // What a call has written is not written again.
            fs::rename(record(dir, 0), dir.join("kept")).unwrap();
            group.close().unwrap();
            drop(group);
            assert!(!record(dir, 0).exists());
            fs::rename(dir.join("kept"), record(dir, 0)).unwrap();
        }
        rank => {
            let until = Instant::now() + LONG;
            while !record(dir, 0).exists() && Instant::now() < until {
                thread::sleep(Duration::from_millis(10));
            }
            // Word to rank 0 is word to all, give or take a crowded machine.
            thread::sleep(Duration::from_secs(2));
            assert!(!record(dir, rank).exists());
            if rank == 2 {
                group.close().unwrap();
                assert!(record(dir, 2).exists());
                assert_eq!(group.barrier(), Err(comity::ErrorKind::Closed.into()));
                fs::rename(record(dir, 2), dir.join("once")).unwrap();
                drop(group);
                assert!(!record(dir, 2).exists());
                fs::rename(dir.join("once"), record(dir, 2)).unwrap();
            } else {
                drop(group);
            }
        }
    }
}

#[test]
fn ranks_that_make_no_further_call_leave_a_record_as_they_leave() {
    if let Some(how) = env::var_os(ROLE) {
        let dir = PathBuf::from(env::var_os("COMITY_LOG_DIR").unwrap());
        return leave(how.to_str().unwrap(), &dir);
    }
    for how in ["killed", "well"] {
        let dir = tempfile::tempdir().unwrap();
        // No launcher, which would end the survivors after a second.
        let meeting = Meeting::new(4);
        let start = |rank: usize| {
            let mut command = this_test(IDLE);
            meeting.join(rank, &mut command);
            // Who is killed after a call may have links that others have not taken over yet.
            command.env(ROLE, how).env("COMITY_CONNECT", "all").env("COMITY_LOG_DIR", dir.path());
            command.spawn().unwrap()
        };
        let children: Vec<_> = (0..4).map(start).collect();
        let ended: Vec<_> = children.into_iter().map(|c| c.wait_with_output().unwrap()).collect();
        for (rank, out) in ended.into_iter().enumerate() {
            let is_killed = how == "killed" && rank == 1;
            assert_eq!(out.status.success(), !is_killed, "{}", String::from_utf8_lossy(&out.stderr));
        }
        if how == "well" {
            assert_eq!(flights(dir.path()), [""; 0]);
            continue;
        }
        let told = run_comity(&["report", dir.path().to_str().unwrap()]).ends(0);
        assert_eq!(told.err, "", "{}", told.out);
        let first = told.out.lines().next().unwrap();
        assert_eq!(
            first,
            "rank 1 left no record (killed, stopped, or ended without closing the group); \
             ranks 2, 3 made no call after barrier #1; rank 0 waits for it in barrier #2"
        );
    }
}

#[test]
fn a_bundle_has_logs_and_settings_and_no_key() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    let logs = dir.path().join("logs");
    let file = dir.path().join("out.tar.gz");
    run_comity(&["key", "new", key.to_str().unwrap()]).ends(0);
    let key_bytes = fs::read(&key).unwrap();
    let secret: String = key_bytes.iter().map(|b| format!("{b:02x}")).collect();
    fs::create_dir(&logs).unwrap();
    let mut log = format!("step 1\nkey {secret}\ntoken hush-hush-hush\nraw ").into_bytes();
    log.extend_from_slice(&key_bytes);
    fs::write(logs.join("rank-0.out"), log).unwrap();
    fs::write(logs.join("rank-0.err"), "words\nof a rank only: S3_SECRET=quiet-quiet\n").unwrap();
    fs::write(logs.join("private.txt"), "nobody's business").unwrap();
    let mut command = comity();
    command.args(["report", logs.to_str().unwrap(), "--bundle", file.to_str().unwrap()]);
    command.env("COMITY_KEY_FILE", &key).env("HUB_TOKEN", "hush-hush-hush").env("COMITY_DETECTION", "7");
    Ended::of(&mut command).ends(0);
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(&file).unwrap()));
    let mut names = Vec::new();
    let mut bytes = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        names.push(entry.path().unwrap().to_str().unwrap().to_owned());
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
    }
    assert!(!bytes.windows(key_bytes.len()).any(|w| w == key_bytes), "the key is in it");
    let all = String::from_utf8(bytes).unwrap();
    for name in ["environment.txt", "logs/rank-0.err", "logs/rank-0.out", "settings.txt", "versions.txt"] {
        assert!(names.contains(&format!("comity-report/{name}")), "{names:?}");
    }
    let kept = ["words\nof a rank only: S3_SECRET=[removed]\n", "COMITY_DETECTION=7", "comity 0."];
    holds(&all, &[&["step 1\nkey [removed]\ntoken [removed]\nraw [removed]"], &kept[..]].concat());
    lacks(&all, &[&secret, "hush", "quiet", "nobody's business"]);
}
