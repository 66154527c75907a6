//! Ten thousand hostile connections to a job whose processes may open 256 files: half of them while a rank is awaited, half while
//! the ranks add up all the time. The job comes about, every sum is right, and nothing is left of them.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod member;

use comity::{Config, Key, tools::Store};
use common::{patient, slowness};
use crowd::{Crowd, Recorded};
use member::{KEY, Member, acted};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// Connections in each half of the test; in the gate fewer.
fn phase() -> usize {
    if scope::Scope::from_env().deep { 5000 } else { 1500 }
}

const TEST: &str = "ten_thousand_hostile_connections_harm_nobody";
/// Connections that a listener keeps before they show the key; see SECURITY.md.
const HALF_OPEN: usize = 64;
const MEMORY_EACH: usize = 64 << 10;
const TIME_EACH: Duration = Duration::from_secs(2);
/// Bound on lateness here, besides that of a thread that only sleeps (which is subtracted).
const SLACK: Duration = Duration::from_millis(250);

fn read_some(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut buf = vec![0; 4096];
    let n = stream.read(&mut buf).unwrap();
    assert!(n > 0, "it gave up too early");
    buf.truncate(n);
    buf
}

/// The first message of a rank of this key that joins a job, and the third, where a store answers.
fn recorded_handshake(key: [u8; 32], store: Option<SocketAddr>) -> (Vec<u8>, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    thread::scope(|s| {
        s.spawn(move || {
            let config = Config::new(1, 3).store(&at).unwrap().job("hostile").key(Key::from(key));
            // It gives up when nobody answers.
            config.join_timeout(Duration::from_secs(3)).connect().unwrap_err();
        });
        let (mut near, _) = listener.accept().unwrap();
        drop(listener);
        let first = read_some(&mut near);
        let third = store.map(|at| {
            let mut far = TcpStream::connect(at).unwrap();
            far.write_all(&first).unwrap();
            near.write_all(&read_some(&mut far)).unwrap();
            read_some(&mut near)
        });
        let _ = near.shutdown(Shutdown::Both);
        (first, third.unwrap_or_default())
    })
}

/// Resources of the attacked processes before a phase.
struct Before {
    files: usize,
    memory: usize,
    cpu: Duration,
}

fn before(who: &Member) -> Before {
    Before { files: who.files(), memory: who.memory(), cpu: who.control_time() }
}

/// Attack `at` by a phase's number of connections, with `meanwhile` after half of them; look at `members` all the time.
fn attack(
    what: &str,
    recorded: &Recorded,
    at: &[SocketAddr],
    members: &[&Member],
    meanwhile: impl FnOnce(),
) -> Duration {
    let start: Vec<Before> = members.iter().map(|m| before(m)).collect();
    let mut files = vec![0; members.len()];
    let mut memory = vec![0; members.len()];
    let crowd = Crowd::start(phase(), at.to_vec(), recorded.clone());
    let begun = Instant::now();
    let mut meanwhile = Some(meanwhile);
    while !crowd.is_over() {
        if crowd.done() > phase() / 2
            && let Some(act) = meanwhile.take()
        {
            act();
        }
        for (i, m) in members.iter().enumerate() {
            files[i] = m.files().saturating_sub(start[i].files).max(files[i]);
            memory[i] = m.memory().saturating_sub(start[i].memory).max(memory[i]);
        }
        thread::sleep(Duration::from_millis(2));
        assert!(begun.elapsed() < patient(Duration::from_secs(120)), "{what}: the crowd does not end");
    }
    let took = begun.elapsed();
    let late = crowd.lateness();
    let lives = crowd.join();
    println!("{what}: {} connections in {took:.1?}, of which the machine was late for {late:.1?}", phase());
    assert_eq!(lives.len(), 9, "each kind: {lives:?}");
    for (kind, (n, longest)) in &lives {
        println!("  {n:5} {kind:?}: closed after {longest:.2?} at most");
        assert!(*longest < patient(TIME_EACH + SLACK), "{what}: {kind:?} was kept for {longest:?}");
    }
    for (i, m) in members.iter().enumerate() {
        let cpu = m.control_time().saturating_sub(start[i].cpu);
        println!(
            "  {}: {} descriptors and {} KiB more at most, {cpu:?} of its control thread's time",
            m.name,
            files[i],
            memory[i] >> 10
        );
        // A sanitizer keeps what was freed.
        let most = if slowness() > 1 { usize::MAX } else { HALF_OPEN * MEMORY_EACH };
        assert!(memory[i] <= most, "{what}: {} grew by {} KiB", m.name, memory[i] >> 10);
    }
    took
}

#[test]
fn ten_thousand_hostile_connections_harm_nobody() {
    if acted() {
        return;
    }
    let answers = ([127, 0, 0, 1], 0).into();
    let answers = Store::start(answers, 3, &Key::from(KEY), "hostile", Duration::from_secs(9)).unwrap();
    let (first, third) = recorded_handshake(KEY, Some(answers.addr()));
    drop(answers);
    let recorded = Recorded { stranger: recorded_handshake([1; 32], None).0, first, third };
    let store = Member::start(TEST, "store");
    let at: SocketAddr = store.hear("listens").parse().unwrap();
    let rank = |r: usize| Member::start(TEST, &format!("rank {r} {at}"));
    let mut ranks = vec![rank(0), rank(1)];
    store.await_connections(2);
    let files = store.files();
    // A rank that waits for the others cannot be connected to.
    assert!(ranks.iter().all(|r| r.listeners().is_empty()));

    attack("a rank is awaited", &recorded, &[at], &[&store], || ranks.push(rank(2)));
    let members = [&store, &ranks[0], &ranks[1], &ranks[2]];
    ranks.iter().for_each(|r| assert_eq!(r.hear("ready"), "3"));
    // The third stays connected, as the others do.
    store.await_files(files + 1);

    // Rank 1 can open 16 files more: the crowd finds it without any.
    ranks[1].tell("hoard");
    ranks[1].hear("hoards");
    let files: Vec<usize> = members.iter().map(|m| m.files()).collect();
    let calls = || ranks[0].calls();
    let quiet = calls();
    let since = Instant::now();
    thread::sleep(Duration::from_secs(2));
    let quiet = (calls() - quiet) as f64 / since.elapsed().as_secs_f64();
    let listeners: Vec<SocketAddr> = [at].into_iter().chain(ranks.iter().map(|r| r.listeners()[0])).collect();
    let before = calls();
    let took = attack("the ranks add up", &recorded, &listeners, &members, || {});
    let attacked = (calls() - before) as f64 / took.as_secs_f64();
    println!("  {quiet:.0} all-reduces of 64 KiB a second before, {attacked:.0} while attacked");
    assert!(calls() > before, "the ranks stand still");
    for (m, n) in members.iter().zip(files) {
        m.await_files(n);
    }
    ranks[0].tell("stop");
    for r in &ranks {
        assert_eq!(r.hear("done"), "all sums right", "{}", r.name);
    }
    ranks.into_iter().for_each(Member::end);
    store.tell("stop");
    store.end();
}
