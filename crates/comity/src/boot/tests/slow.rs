//! Hosts on which ranks get few turns: while a job comes together nobody is taken for dead because it is slow.

use super::*;
use crate::{
    Detection,
    boot::{
        dial::{Patience, Target, dial},
        hello::{Channel, Hello},
        meet::Meeting,
        wire::Facts,
    },
    sys::Bell,
};

/// What a process says of itself that is none of ours.
pub(super) fn facts_of(host: &str, pid: u32, addrs: Vec<SocketAddr>) -> Facts {
    Facts {
        host_id: u64::from(pid),
        host: host.into(),
        pid,
        cores: 1,
        shm: false,
        tcp: true,
        rdma: false,
        ring: false,
        sealed: false,
        silence: 1000,
        senders: u16::MAX,
        connections: 1,
        unix: String::new(),
        addrs,
    }
}

#[test]
fn nobody_is_silent_while_ranks_connect() {
    let store = store(4, LONG);
    let at = store.addr();
    let fast = |r| config(r, 4, at).links([LinkKind::Tcp]).detection(Detection::Fast);
    let facts = |pid| facts_of("slow", pid, vec![(LOOPBACK, 1).into()]);
    let begun = Instant::now();
    thread::scope(|s| {
        let real: Vec<_> = (0..2).map(|r| s.spawn(move || Endpoint::join(&fast(r)))).collect();
        // Rank 3 connects with nobody before the end.
        let (mut last, _) = Meeting::find(&fast(3)).unwrap();
        let last = s.spawn(move || last.join(facts(3)).map(|_| last));
        // Rank 2 connects with all below it, then has no turn for thrice the limit of silence, then dies.
        let (mut meeting, secret) = Meeting::find(&fast(2)).unwrap();
        let table = meeting.join(facts(2)).unwrap();
        let (bell, until) = (Bell::new().unwrap(), until());
        let patience = Patience { until, bells: vec![bell.fd()], check: &|| Ok(()) };
        let streams: Vec<_> = (0..2)
            .map(|to| {
                let channel = Channel::Control;
                let hello =
                    Hello { from: 2, to: to as u32, world: table.world, context: 0, channel, sealed: false };
                dial(&[Target::Tcp(table.facts[to].addrs[0])], &secret, &hello, &patience).unwrap()
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
        assert!(died.elapsed() < Duration::from_secs(2), "{:?}", died.elapsed());
        drop(last.join().unwrap());
    });
}
