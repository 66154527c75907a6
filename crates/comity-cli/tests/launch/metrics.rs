//! `--metrics`: what a scrape sees of a job, while it runs and when ranks have ended.
use super::harness::*;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{ChildStderr, Stdio};
use std::time::{Duration, Instant};

/// A scrape, by name and labels as they stand there.
type Page = BTreeMap<String, f64>;

fn scrape(addr: SocketAddr) -> Page {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(deadline())).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    parse(body)
}

/// Strictly by <https://prometheus.io/docs/instrumenting/exposition_formats/>.
fn parse(body: &str) -> Page {
    assert!(body.ends_with('\n'));
    let is_name = |n: &str| {
        !n.is_empty()
            && !n.starts_with(|c: char| c.is_ascii_digit())
            && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut page = Page::new();
    let mut seen = BTreeSet::new();
    let mut helped = String::new();
    let mut typed = (String::new(), String::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(is_name(name) && !help.is_empty() && seen.insert(name.to_owned()), "{line}");
            helped = name.into();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(name == helped && ["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            typed = (name.into(), kind.into());
        } else {
            // What needs a backslash is in the tests of comity-launch.
            let (key, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = key.split_once('{').unwrap_or((key, ""));
            assert_eq!(name, typed.0, "a sample outside its group: {line}");
            for label in labels.strip_suffix('}').into_iter().flat_map(|labels| labels.split(',')) {
                let (label, text) = label.split_once("=\"").unwrap();
                assert!(is_name(label) && text.ends_with('"'), "{line}");
            }
            assert_eq!(labels.is_empty(), !key.ends_with('}'), "{line}");
            let value: f64 = value.parse().unwrap();
            assert!(value.is_finite() && (typed.1 != "counter" || value >= 0.0), "{line}");
            assert_eq!(page.insert(key.to_owned(), value), None, "twice: {line}");
        }
    }
    page
}

/// The address that a launcher with `--metrics 127.0.0.1:0` says first. What comes after it is passed on.
fn announced(err: ChildStderr) -> SocketAddr {
    let mut err = BufReader::new(err);
    let mut line = String::new();
    err.read_line(&mut line).unwrap();
    std::thread::spawn(move || err.lines().map_while(Result::ok).for_each(|l| eprintln!("{l}")));
    let at = line
        .trim()
        .strip_prefix("comity launch: metrics at http://")
        .and_then(|l| l.strip_suffix("/metrics"));
    at.unwrap_or_else(|| panic!("{line}")).parse().unwrap()
}

#[test]
fn a_scrape_sees_what_each_rank_does_and_how_it_ended() {
    let comity = COMITY;
    // The second rank leaves; the third is killed, and what it did must not be lost with it.
    let script = format!(
        "[ $RANK != 0 ] || echo $COMITY_JOB
         {comity} bench all_reduce barrier --sizes 4096 --iters 50 --warmup 0 >&2 || exit 9
         [ $RANK = 1 ] && exit 0
         exec sleep 1000"
    );
    let flags = ["-n", "3", "--insecure", "--metrics", "127.0.0.1:0", "--", "sh", "-c", &script];
    let (mut command, mark) = command(&flags);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let addr = announced(child.stderr.take().unwrap());
    let mut name = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut name).unwrap();
    let name = name.trim().trim_start_matches("[0] ");
    let page = wait_for("the end of rank 1", || {
        // Looked at first: what is scraped after it is scraped when the groups are closed.
        let asleep = marked(&mark).iter().filter(|p| p.name == "sleep").count() == 2;
        let page = scrape(addr);
        (asleep && page.contains_key(r#"comity_rank_exit_code{rank="1"}"#)).then_some(page)
    });
    let of = |key: &str| *page.get(key).unwrap_or_else(|| panic!("no {key} in {page:#?}"));
    assert_eq!(of("comity_job_ranks"), 3.0);
    assert_eq!(of(r#"comity_rank_exit_code{rank="1"}"#), 0.0);
    assert!(page.keys().any(|k| k.starts_with("comity_job_info{job_id=\"")), "{page:#?}");
    // In a job without a key its name is all that keeps others out.
    assert!(name.len() >= 16 && !page.keys().any(|k| k.contains(name)), "{name} in {page:#?}");
    for rank in 0..3 {
        let of = |name: &str| of(&format!("{name}{{rank=\"{rank}\"}}"));
        assert_eq!(of("comity_rank_up"), if rank == 1 { 0.0 } else { 1.0 });
        assert_eq!((of("comity_call_errors_total"), of("comity_groups_open")), (0.0, 0.0));
        let of = |name: &str, op: &str| page[&format!("{name}{{rank=\"{rank}\",op=\"{op}\"}}")];
        assert!(of("comity_calls_total", "all_reduce") >= 50.0, "{page:#?}");
        // Two thirds of the buffer twice, at the least.
        assert!(of("comity_sent_bytes_total", "all_reduce") >= 50.0 * 4096.0, "{page:#?}");
        assert!(of("comity_calls_total", "barrier") >= 50.0, "{page:#?}");
    }
    let calls = of(r#"comity_calls_total{rank="2",op="all_reduce"}"#);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    let status = wait_for("the launcher", || child.try_wait().unwrap());
    assert_eq!((status.code(), calls > 0.0), (Some(143), true));
    assert!(marked(&mark).is_empty());
}

#[test]
fn without_the_flag_nobody_listens_and_each_rank_has_a_sheet_of_its_own() {
    let numbers = run(&["-n", "2", "sh", "-c", "echo $COMITY_STATS_FD"]);
    let mut own: Vec<_> = numbers.sorted().iter().map(|l| l[4..].to_owned()).collect();
    own.dedup();
    assert_eq!((numbers.code, own.len()), (0, 2), "{}", numbers.out);
    assert!(own.iter().all(|n| n.parse::<i32>().is_ok()), "{}", numbers.out);
    assert!(!numbers.err.contains("metrics"), "{}", numbers.err);
}

#[test]
fn what_makes_no_sense_in_the_place_of_a_sheet_is_passed_over() {
    // Not open; not a sheet.
    for fd in ["1000", "0"] {
        let mut command = comity();
        command.args(["check", "--quick", "--ops", "barrier"]).env("COMITY_STATS_FD", fd);
        Ended::of(&mut command).ends(0);
    }
}

#[test]
fn a_taken_address_is_refused_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("logs");
    let start = Instant::now();
    let done = run(&["--metrics", &taken, "--log-dir", logs.to_str().unwrap(), "true"]).ends(2);
    done.says(&["--metrics", &taken, "in use"]);
    assert!(!logs.exists() && start.elapsed() < patient(Duration::from_secs(20)));
}
