//! Hosts on which ranks get few turns: while a job comes together nobody is taken for dead because it is slow.

use super::*;
use crate::{
    Detection,
    channel::{Channel, Conn, DialLimits, Hello, Target, dial},
    control::{ControlNote, Encoding},
    rendezvous::facts_of,
    status::GroupStatus,
    sys::Waker,
};

#[test]
fn nobody_is_silent_while_ranks_connect() {
    let store = store(4, LONG);
    let at = store.addr();
    let fast = |r| config(r, 4, at).links([LinkKind::Tcp]).detection(Detection::Fast);
    let facts = |pid| facts_of("slow", pid, vec![(LOOPBACK, 1).into()]);
    let begun = Instant::now();
    thread::scope(|s| {
        let real: Vec<_> = (0..2).map(|r| s.spawn(move || join_job(&fast(r)))).collect();
        // Rank 3 connects with nobody before the end.
        let (mut last, _) = find_store(&fast(3)).unwrap();
        let last = s.spawn(move || last.join(facts(3)).map(|_| last));
        // Rank 2 connects with all below it, then has no turn for thrice the limit of silence, then dies.
        let (mut meeting, secret) = find_store(&fast(2)).unwrap();
        let table = meeting.join(facts(2)).unwrap();
        let waker = Waker::new().unwrap();
        let until = until();
        let patience = DialLimits { until, wakers: vec![waker.fd()], check: &|| Ok(()) };
        let streams: Vec<_> = (0..2)
            .map(|to| {
                let channel = Channel::Control;
                let hello =
                    Hello { from: 2, to: to as u32, world: table.world, group_id: 0, channel, sealed: false };
                dial(&[Target::Tcp(table.facts[to].card.addrs[0].at)], &secret, &hello, &patience).unwrap()
            })
            .collect();
        thread::sleep(Duration::from_secs(3));
        assert!(real.iter().all(|r| !r.is_finished()), "after {:?}", begun.elapsed());
        let died = Instant::now();
        drop(streams);
        for rank in real {
            let e = rank.join().unwrap().unwrap_err().to_string();
            assert!(e.contains("rank 2 (host slow, pid 2) ended while the ranks were connecting"), "{e}");
        }
        assert!(died.elapsed() < LONG / 2, "{:?}", died.elapsed());
        drop(last.join().unwrap());
    });
}

/// A rank that has connected, and even spoken, has no turn while the links of the first group are made.
#[test]
fn nobody_is_silent_while_the_first_group_is_made() {
    let store = store(3, LONG);
    let at = store.addr();
    let fast = |r| config(r, 3, at).links([LinkKind::Tcp]).detection(Detection::Fast);
    let open = |rank: usize| {
        let endpoint = join_job(&fast(rank)).unwrap();
        let status = Arc::new(GroupStatus::new(3, Arc::default()).unwrap());
        let made = endpoint.open(0, &[0, 1, 2], &status, until()).map(|_| ());
        (made.unwrap_err().to_string(), endpoint)
    };
    thread::scope(|s| {
        let real: Vec<_> = (0..2).map(|r| s.spawn(move || open(r))).collect();
        let (mut meeting, secret) = find_store(&fast(2)).unwrap();
        let table = meeting.join(facts_of("slow", 2, vec![(LOOPBACK, 1).into()])).unwrap();
        let waker = Waker::new().unwrap();
        let until = until();
        let patience = DialLimits { until, wakers: vec![waker.fd()], check: &|| Ok(()) };
        let conns: Vec<_> = (0..2)
            .map(|to| {
                let channel = Channel::Control;
                let hello =
                    Hello { from: 2, to: to as u32, world: table.world, group_id: 0, channel, sealed: false };
                let targets = [Target::Tcp(table.facts[to].card.addrs[0].at)];
                let (stream, seals) = dial(&targets, &secret, &hello, &patience).unwrap();
                let mut conn = Conn::new(stream, seals);
                conn.send(&ControlNote::Heartbeat { progress: 0 }.encode()).unwrap();
                conn
            })
            .collect();
        // Thrice the limit of silence.
        thread::sleep(Duration::from_secs(3));
        assert!(real.iter().all(|r| !r.is_finished()));
        let died = Instant::now();
        drop(conns);
        for rank in real {
            let (e, _endpoint) = rank.join().unwrap();
            assert!(e.contains("rank 2 (host slow, pid 2) died"), "{e}");
        }
        assert!(died.elapsed() < LONG / 2, "{:?}", died.elapsed());
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
        let status = Arc::new(GroupStatus::new(4, Arc::default()).unwrap());
        endpoint.open(group_id, &[0, 1, 2, 3], &status, Instant::now() + LIMIT).map(|_| ())
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
