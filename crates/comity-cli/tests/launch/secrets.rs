//! Places where the job key must not be: arguments, environments, logs, records, and the memory that a core dump shows; and where ranks
//! do not listen.
#![cfg(target_os = "linux")]
use super::harness::*;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// A secret as it may be written down.
fn forms(secret: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let hex: String = secret.iter().map(|b| format!("{b:02x}")).collect();
    let listed: Vec<String> = secret.iter().map(u8::to_string).collect();
    let mut all = vec![
        ("raw", secret.to_vec()),
        ("hex", hex.clone().into_bytes()),
        ("HEX", hex.to_uppercase().into_bytes()),
        ("a list", listed.join(", ").into_bytes()),
    ];
    // Base64 of a part that begins on a whole group, whatever stood before it.
    for (name, skip) in [("base64", 0), ("base64 + 1", 1), ("base64 + 2", 2)] {
        all.push((name, base64(&secret[skip..][..30])));
    }
    all
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |c: &[u8]| u32::from(c[0]) << 16 | u32::from(c[1]) << 8 | u32::from(c[2]);
    let digits = |c: &[u8]| [18, 12, 6, 0].map(|shift| DIGITS[(group(c) >> shift & 63) as usize]);
    bytes.chunks_exact(3).flat_map(digits).collect()
}

/// The forms in which `bytes` hold the secret.
fn find(bytes: &[u8], forms: &[(&'static str, Vec<u8>)]) -> Vec<&'static str> {
    let holds = |form: &[u8]| memchr::memmem::find(bytes, form).is_some();
    forms.iter().filter(|(_, form)| holds(form)).map(|(name, _)| *name).collect()
}

/// Places where a process shows the secret: its arguments, its environment, and what a core dump of it would hold, which is
/// the memory that can be read and was not excluded. And the number of bytes of that memory.
fn search(pid: i32, forms: &[(&'static str, Vec<u8>)]) -> (Vec<String>, usize) {
    let mut found = Vec::new();
    for file in ["cmdline", "environ"] {
        // The process may have ended.
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        found.extend(find(&bytes, forms).iter().map(|form| format!("{file} ({form})")));
    }
    let mut seen = 0;
    let (Ok(maps), Ok(memory)) =
        (fs::read_to_string(format!("/proc/{pid}/smaps")), File::open(format!("/proc/{pid}/mem")))
    else {
        return (found, seen);
    };
    let mut mapping: Option<(u64, u64, &str)> = None;
    let mut resident = false;
    for line in maps.lines() {
        let word = line.split_ascii_whitespace().next().unwrap_or_default();
        let bounds = word
            .split_once('-')
            .and_then(|(a, b)| Some((u64::from_str_radix(a, 16).ok()?, u64::from_str_radix(b, 16).ok()?)));
        if let Some((from, to)) = bounds {
            mapping = Some((from, to, line));
        } else if word == "Rss:" {
            resident = !line.ends_with(" 0 kB");
        } else if word == "VmFlags:" {
            let Some((from, to, mapped)) = mapping.take() else { continue };
            let flags: BTreeSet<&str> = line.split_ascii_whitespace().collect();
            if !resident || flags.contains("dd") || flags.contains("io") || !flags.contains("rd") {
                continue;
            }
            let mut bytes = vec![0; (to - from) as usize];
            if memory.read_exact_at(&mut bytes, from).is_ok() {
                seen += bytes.len();
                found.extend(find(&bytes, forms).iter().map(|form| format!("{mapped} ({form})")));
            }
        }
    }
    (found, seen)
}

/// The key of a job, from the descriptor of one of its ranks.
fn key_of(rank: i32) -> Vec<u8> {
    let env = fs::read_to_string(format!("/proc/{rank}/environ")).unwrap();
    let fd = env.split('\0').find_map(|v| v.strip_prefix("COMITY_KEY_FD=")).unwrap();
    let path = format!("/proc/{rank}/fd/{fd}");
    assert!(fs::read_link(&path).unwrap().to_str().unwrap().starts_with("/memfd:"));
    let key = fs::read(path).unwrap();
    assert!(key.len() == 32 && key.iter().any(|&b| b != 0));
    key
}

/// The processes of a job that are ranks, once all have met and are at work.
fn ranks_at_work(job: &Job, n: usize) -> Vec<i32> {
    wait_for("ranks at work", || {
        let is_rank = |pid: &i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = words.split(|b| *b == 0).collect();
            words.get(1) == Some(&&b"bench"[..])
        };
        let pids: Vec<i32> = job.processes().iter().map(|p| p.pid.as_raw_pid()).filter(is_rank).collect();
        // The table's first row is printed after its calls.
        (pids.len() == n && job.log_of(0).lines().count() > 4).then_some(pids)
    })
}

const RANKS: usize = 3;

fn busy_job(logs: &std::path::Path, secure: &str) -> Job {
    let dir = logs.to_str().unwrap();
    let flags = ["-n", "3", "--verbose", "--log-dir", dir, "--secure", secure, "--"];
    // Eight rows: they last longer than the search, also on a busy machine.
    let seconds = (4 * slowness()).to_string();
    let bench = [COMITY, "bench", "--sizes", "64:64M", "--budget", &seconds];
    let mut job = start_with(&[&flags[..], &bench[..]].concat(), |c| {
        c.env("COMITY_LINKS", "tcp")
            .env("COMITY_VERBOSE", "1")
            .env("RUST_LOG", "trace")
            .env("RUST_BACKTRACE", "full");
        if let Ok(options) = std::env::var("ASAN_OPTIONS") {
            // Otherwise the sanitizer keeps frames for itself, beside the stack, where no program can overwrite them.
            c.env("ASAN_OPTIONS", options + ":detect_stack_use_after_return=0");
        }
        c
    });
    job.logs = Some(logs.into());
    job
}

#[test]
fn the_key_is_nowhere_to_be_found() {
    for secure in scope::Scope::from_env().share(vec!["handshake", "data"], 2) {
        let logs = tempfile::tempdir().unwrap();
        let job = busy_job(logs.path(), secure);
        let ranks = ranks_at_work(&job, RANKS);
        let key = key_of(ranks[0]);
        let forms = forms(&key);
        let processes = job.processes();
        assert!(processes.len() >= RANKS + 2, "the launcher's two processes and the ranks: {processes:?}");
        for process in &processes {
            let (found, seen) = search(process.pid.as_raw_pid(), &forms);
            assert!(found.is_empty(), "{secure}: the key is in {process:?}: {found:?}");
            assert!(seen > 100_000, "only {seen} bytes of {process:?} were searched");
        }
        // A failure makes everybody talk: errors, the launcher's report, flight records.
        rustix::process::kill_process(rustix::process::Pid::from_raw(ranks[2]).unwrap(), Signal::KILL)
            .unwrap();
        let done = job.finish().ends(128 + 9);
        let mut files = 0;
        for entry in fs::read_dir(logs.path()).unwrap() {
            let path = entry.unwrap().path();
            let found = find(&fs::read(&path).unwrap(), &forms);
            assert!(found.is_empty(), "{}: {found:?}", path.display());
            files += usize::from(path.to_string_lossy().ends_with(".flight.json"));
        }
        // The launcher gives the survivors a second, which on a crowded machine may be too short for one of them.
        assert!(files >= 1, "no survivor left a record");
        assert!(done.err.contains("COMITY_KEY_FD="), "{}", done.err);
        for text in [&done.out, &done.err] {
            assert!(find(text.as_bytes(), &forms).is_empty(), "{text}");
        }
    }
}

#[test]
fn a_secret_that_is_there_is_found() {
    let secret: Vec<u8> = (0..32).map(|i| (i * 37 + 11) as u8).collect();
    let forms = forms(&secret);
    for (name, text) in forms.iter().filter(|(name, _)| *name != "raw") {
        let mut child = Command::new("sleep")
            .arg("100")
            .env("HOLDS", std::str::from_utf8(text).unwrap())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        wait_for("the program", || {
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|e| !e.is_empty()).then_some(())
        });
        let (found, _) = search(pid, &forms);
        let _ = child.kill();
        let _ = child.wait();
        assert!(found.contains(&format!("environ ({name})")), "{name}: {found:?}");
        assert!(found.iter().any(|f| f.contains("[stack]")), "a core dump shows the environment: {found:?}");
    }
    // Raw, in the memory of this process.
    let held = secret.clone();
    assert!(search(std::process::id() as i32, &forms).0.iter().any(|f| f.ends_with("(raw)")));
    assert_eq!(find(&held, &forms), ["raw"]);
}

/// The addresses at which a process listens for TCP.
fn listens(pid: i32) -> Vec<String> {
    sockets(pid as u32, "0A").iter().map(|at| at.split_once(':').unwrap().0.to_owned()).collect()
}

#[test]
fn a_job_listens_at_the_address_of_its_peers_only() {
    let logs = tempfile::tempdir().unwrap();
    let job = busy_job(logs.path(), "handshake");
    let ranks = ranks_at_work(&job, RANKS);
    let all: Vec<(i32, Vec<String>)> =
        job.processes().iter().map(|p| (p.pid.as_raw_pid(), listens(p.pid.as_raw_pid()))).collect();
    for rank in &ranks {
        assert!(all.iter().any(|(pid, at)| pid == rank && at.len() == 1), "{all:?}");
    }
    // The kernel writes 127.0.0.1 as a number in the host's order.
    let loopback = format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]));
    assert!(all.iter().flat_map(|(_, at)| at).all(|at| *at == loopback), "{all:?}");
    assert!(all.iter().map(|(_, at)| at.len()).sum::<usize>() > RANKS, "and the store: {all:?}");
    drop(job);
    let everywhere =
        [std::net::TcpListener::bind("0.0.0.0:0").unwrap(), std::net::TcpListener::bind("[::]:0").unwrap()];
    let own = listens(std::process::id() as i32);
    assert!(own.contains(&"0".repeat(8)) && own.contains(&"0".repeat(32)), "{own:?} {everywhere:?}");
}
