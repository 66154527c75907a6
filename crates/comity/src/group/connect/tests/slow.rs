//! Hosts on which ranks get few turns: while a job comes together nobody is taken for dead because it is slow.

use super::*;
use crate::{
    Detection,
    channel::{Channel, Conn, DialLimits, Hello, Target, dial},
    control::{ControlNote, Encoding},
    rendezvous::{Facts, Table, facts_of},
    sys::Waker,
};

/// A rank that gives up early who is silent.
fn fast(rank: usize, size: usize, at: SocketAddr) -> Config {
    config(rank, size, at).links([LinkKind::Tcp]).detection(Detection::Fast)
}

/// Facts of a rank of a slow host.
fn slow(pid: u32) -> Facts {
    facts_of("slow", pid, vec![(LOOPBACK, 1).into()])
}

/// Control connections of rank 2, which has joined, to both below it.
fn dialed(secret: &Secret, table: &Table) -> Vec<Conn> {
    let waker = Waker::new().unwrap();
    let patience = DialLimits { until: until(), wakers: vec![waker.fd()], check: &|| Ok(()) };
    let connect = |to: usize| {
        let channel = Channel::Control;
        let hello = Hello { from: 2, to: to as u32, world: table.world, group_id: 0, channel, sealed: false };
        let targets = [Target::Tcp(table.facts[to].card.addrs[0].at)];
        let (stream, seals) = dial(&targets, secret, &hello, &patience).unwrap();
        Conn::new(stream, seals)
    };
    (0..2).map(connect).collect()
}

/// Rank 2 connects with all below it, then has no turn for thrice the limit of silence, then dies: not before do they know.
fn has_no_turn<T>(real: Vec<thread::ScopedJoinHandle<'_, T>>, conns: Vec<Conn>) -> Vec<T> {
    thread::sleep(Duration::from_secs(3));
    assert!(real.iter().all(|r| !r.is_finished()));
    let died = Instant::now();
    drop(conns);
    let known = real.into_iter().map(|r| r.join().unwrap()).collect();
    assert!(died.elapsed() < LONG / 2, "{:?}", died.elapsed());
    known
}

#[test]
fn nobody_is_silent_while_ranks_connect() {
    let store = store(4, LONG);
    let at = store.addr();
    thread::scope(|s| {
        let real: Vec<_> = (0..2).map(|r| s.spawn(move || join_job(&fast(r, 4, at)))).collect();
        // Rank 3 connects with nobody before the end.
        let (mut last, _) = find_store(&fast(3, 4, at)).unwrap();
        let last = s.spawn(move || last.join(slow(3)).map(|_| last));
        let (mut meeting, secret) = find_store(&fast(2, 4, at)).unwrap();
        let table = meeting.join(slow(2)).unwrap();
        for joined in has_no_turn(real, dialed(&secret, &table)) {
            let e = joined.unwrap_err().to_string();
            assert!(e.contains("rank 2 (host slow, pid 2) ended while the ranks were connecting"), "{e}");
        }
        drop(last.join().unwrap());
    });
}

/// A rank that has connected, and even spoken, has no turn while the links of the first group are made.
#[test]
fn nobody_is_silent_while_the_first_group_is_made() {
    let store = store(3, LONG);
    let at = store.addr();
    let open = |rank: usize| {
        let endpoint = join_job(&fast(rank, 3, at)).unwrap();
        let made = endpoint.open(0, &[0, 1, 2], &status(3), until()).map(|_| ());
        (made.unwrap_err().to_string(), endpoint)
    };
    thread::scope(|s| {
        let real: Vec<_> = (0..2).map(|r| s.spawn(move || open(r))).collect();
        let (mut meeting, secret) = find_store(&fast(2, 3, at)).unwrap();
        let table = meeting.join(slow(2)).unwrap();
        let mut conns = dialed(&secret, &table);
        conns.iter_mut().for_each(|c| c.send(&ControlNote::Heartbeat { progress: 0 }.encode()).unwrap());
        for (e, _endpoint) in has_no_turn(real, conns) {
            assert!(e.contains("rank 2 (host slow, pid 2) died"), "{e}");
        }
    });
}

/// The limit of the first group counts from its last link, that of later ones from the call.
#[test]
fn the_first_group_may_take_longer_than_the_limit_if_links_are_made() {
    const LIMIT: Duration = Duration::from_secs(6);
    let store = store(4, LONG);
    let at = store.addr();
    // Ranks come one after the other, each within the limit, the last one beyond that of the first.
    let open = |endpoint: &Endpoint, group_id: u64, pauses: [u32; 4]| {
        thread::sleep(LIMIT * pauses[endpoint.rank()] / 8);
        endpoint.open(group_id, &[0, 1, 2, 3], &status(4), Instant::now() + LIMIT).map(|_| ())
    };
    thread::scope(|s| {
        let run = |rank| {
            let endpoint = join_job(&config(rank, 4, at)).unwrap();
            let first = open(&endpoint, 0, [0, 0, 5, 10]);
            let second = open(&endpoint, 7, [0, 0, 5, 10]);
            (first, second, endpoint)
        };
        let ranks: Vec<_> = (0..4).map(|r| s.spawn(move || run(r))).collect();
        let all: Vec<_> = ranks.into_iter().map(|r| r.join().unwrap()).collect();
        assert!(all.iter().all(|(first, ..)| first.is_ok()), "{all:?}");
        let e = all[0].1.as_ref().unwrap_err().to_string();
        // Rank 1's limit passes in the same moment, so this may be what rank 1 says.
        assert!(e.contains("rank 3") && e.contains("come to the group"), "{e}");
    });
}
