//! Admission to a job: keys that are needed, told over exchanges, or not wanted; secrecy that all must agree on; and two jobs that find
//! each other at the same ports.

use super::*;
use crate::{Exchange, Group, Protection, ReduceOp, exchange::UnixExchange, settings::Insecure};
use std::{fmt, sync::Mutex};

/// Rank 0's text, for ranks that are threads of one process.
#[derive(Debug, Default)]
struct Wall {
    text: Mutex<Option<String>>,
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a wall")
    }
}

impl Exchange for Wall {
    fn share(&self, rank: usize, _: usize, mine: Option<&str>, until: Instant) -> Result<String> {
        if let Some(text) = mine {
            assert_eq!(rank, 0);
            *self.text.lock().unwrap() = Some(text.into());
        }
        loop {
            if let Some(text) = self.text.lock().unwrap().clone() {
                return Ok(text);
            }
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Join at a wall, each rank with what `adapt` makes of its configuration; and what was on the wall.
fn at_wall(adapt: impl Fn(Config) -> Config + Sync, limit: Duration) -> (Vec<Result<Arc<Endpoint>>>, String) {
    let wall = Arc::new(Wall::default());
    let exchange: Arc<dyn Exchange> = Arc::clone(&wall) as _;
    let all = each(0..2, |r| {
        let c = Config::new(r, 2)
            .exchange(Arc::clone(&exchange))
            .addrs([(LOOPBACK, 0).into()])
            .connect_when(ConnectTiming::All)
            .join_timeout(limit);
        join_job(&adapt(c))
    });
    let text = wall.text.lock().unwrap().clone();
    (all, text.unwrap_or_default())
}

#[test]
fn rank_0_shares_a_key_over_a_exchange() {
    let (all, text) = at_wall(|c| c, LONG);
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    each(0..2, |r| talk(r, &mut open(&all[r], 0, &[0, 1]).1));
    let (at, word) = text.split_once('/').unwrap();
    assert!(word.starts_with("key-") && word.len() == 4 + 64, "{word}");
    // The store takes that key and no other.
    let join =
        |key: Key| join_job(&config(0, 3, at.parse().unwrap()).job("-").key(key)).unwrap_err().to_string();
    assert!(join(Key::from([0; 32])).contains("another key"));
    assert!(join(Key::from_hex(&word[4..]).unwrap()).contains("for a job of 3 ranks"));
    let (_, other) = at_wall(|c| c, LONG);
    assert_ne!(text, other);
}

#[test]
fn an_exchange_tells_no_key_that_the_ranks_hold_already() {
    let (all, text) = at_wall(|c| c.key(Key::from([0x5a; 32])), LONG);
    assert!(all.iter().all(Result::is_ok));
    assert!(text.ends_with("/held") && !text.contains("5a5a"), "{text}");
    let (all, text) = at_wall(Config::insecure, LONG);
    assert!(all.iter().all(Result::is_ok) && text.ends_with("/open"), "{text}");
    let only_one = |c: Config| if c.rank() == 0 { c.key(Key::from([1; 32])) } else { c };
    let (all, _) = at_wall(only_one, Duration::from_secs(3));
    let e = all[1].as_ref().unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::Config(words) if words.to_string().contains("rank 0") && words.to_string().contains("rank 1")),
        "{e}"
    );
    assert!(all[0].is_err());
}

#[test]
fn an_exchange_of_this_host_carries_a_key() {
    let job = format!("carries-{}", std::process::id());
    // Both ends count their shares in one process here, so each has a job of its own to count in.
    let exchange = UnixExchange::new(&job);
    let text = format!("127.0.0.1:5000/key-{}", "0f".repeat(32));
    assert_eq!(exchange.share(0, 2, Some(&text), until()).unwrap(), text);
}

#[test]
fn without_a_key_nobody_joins_unless_asked_to() {
    let at = "127.0.0.1:9";
    let c = Config::new(1, 2);
    for c in [c.clone().store(at).unwrap(), c.clone().rendezvous(at).unwrap()] {
        let begun = Instant::now();
        let e = join_job(&c).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Config(_)), "{e}");
        for part in ["rank 1 of 2", "comity launch", "COMITY_KEY_FILE", "COMITY_INSECURE=1", "--insecure"] {
            assert!(e.to_string().contains(part), "{e}");
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "at once, not at the limit of a minute");
        // A place with nobody there is found so only once that is settled.
        let c = c.insecure().join_timeout(Duration::from_millis(50));
        let e = join_job(&c).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Join(_)), "{e}");
    }
    let vars = |name: &str| {
        let of = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "9")];
        of.iter().find(|v| v.0 == name).map(|v| v.1.into())
    };
    let e = join_job(&Config::from_vars(vars).unwrap()).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Config(words) if words.to_string().contains("no launcher")), "{e}");
    assert!(Config::new(0, 1).connect().is_ok(), "a group of one needs none");
}

#[test]
fn a_public_address_needs_a_key_or_a_plain_word() {
    // An address that is nobody's here: it is refused before the system is asked.
    let at = "198.51.100.7:7000";
    let public = |c: Config| join_job(&c.rendezvous(at).unwrap().join_timeout(Duration::from_millis(50)));
    let e = public(Config::new(0, 2).insecure()).unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::Config(words) if words.to_string().contains(at) && words.to_string().contains("=public")),
        "{e}"
    );
    for c in [Config::new(0, 2).insecure_in_public(), Config::new(0, 2).key(Key::from(KEY))] {
        let e = public(c).unwrap_err().to_string();
        assert!(e.contains("no such address"), "{e}");
    }
    let store = Store::start(at.parse().unwrap(), 2, &Key::from([0; 32]), "job", LONG);
    let e = store.unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Config(e) if e.to_string().contains("=public")), "{e}");
    // A rank's own address, with the store elsewhere.
    let store = Store::start((LOOPBACK, 0).into(), 2, &Key::from([0; 32]), "job", LONG).unwrap();
    let c = Config::new(1, 2).store(&store.addr().to_string()).unwrap().job("job").insecure();
    assert_eq!(c.settings.insecure, Insecure::Private);
    let e = join_job(&c.addrs([at.parse().unwrap()])).unwrap_err().to_string();
    assert!(e.contains("rank 1") && e.contains("=public"), "{e}");
}

#[test]
fn sealed_worlds_meet_open_and_talk() {
    for connections in [1, 2, 3] {
        let all = world(3, |c| c.secure(Protection::Data).links([LinkKind::Tcp]).connections(connections));
        each(0..3, |r| {
            let (status, mut links) = open(&all[r], 0, &[0, 1, 2]);
            talk(r, &mut links);
            assert!(status.failure().is_none());
        });
    }
    // Control connections over TCP, too: two hosts as far as the ranks know.
    let names = ["a", "b"];
    let mut all = world(2, |c| {
        let name = names[c.rank()];
        c.secure(Protection::Data).host_name(name)
    });
    let opened = each(0..2, |r| open(&all[r], 0, &[0, 1]));
    let failure = Failure::reported(1, "the disk is full");
    all[1].abort(0, &failure);
    assert_eq!(await_failure(&opened[0].0), failure);
    all.clear();
}

#[test]
fn secrecy_is_for_all_or_for_none() {
    let store = store(3, LONG);
    let errors = each(0..3, |r| {
        let c = config(r, 3, store.addr());
        join_job(&if r == 1 { c.secure(Protection::Data) } else { c }).unwrap_err()
    });
    for e in errors {
        let ErrorKind::Config(words) = e.kind() else { panic!("{e}") };
        assert!(
            words.to_string().contains("rank 1 was started with COMITY_SECURE=data, rank 0 was not"),
            "{e}"
        );
    }
}

/// Two jobs of two ranks start at the same moment with the same addresses. One job gets them and is right; the other gets an error.
#[test]
#[cfg(target_os = "linux")]
fn jobs_at_the_same_ports_never_mix() {
    // Each fourth is of one kind.
    let pairs = if scope::Scope::from_env().deep { 200 } else { 40 };
    let limit = Duration::from_secs(20);
    let mut won = [0; 2];
    for pair in 0..pairs {
        let (_held, ports): (Vec<_>, Vec<_>) = (0..3).map(|_| reserved()).unzip();
        let start = Barrier::new(4);
        let ended = each(0..4, |i| {
            let job = i / 2;
            let rank = i % 2;
            let c = Config::new(rank, 2).rendezvous(&ports[2].to_string()).unwrap().addrs([ports[rank]]);
            let c = c.links([LinkKind::Tcp]).join_timeout(limit);
            let name = ["one", "other"][job];
            let c = match pair % 4 {
                0 => c.key(Key::from([job as u8 + 1; 32])),
                1 => c.key(Key::from([job as u8 + 1; 32])).job(name).secure(Protection::Data),
                2 => c.key(Key::from(KEY)).job(name),
                _ => c.insecure().job(name),
            };
            start.wait();
            let group: Group = c.connect()?;
            let mut sum = [10_u32.pow(job as u32) * (rank as u32 + 1); 3];
            group.all_reduce(&mut sum, ReduceOp::Sum)?;
            // Kept open until all four are done, so that the other job's ranks meet somebody.
            Ok::<_, Error>((sum, group))
        });
        let right = |job: usize| ended[2 * job..][..2].iter().filter(|e| e.is_ok()).count();
        for (i, end) in ended.iter().enumerate() {
            match end {
                Ok((sum, _)) => assert_eq!(sum, &[[3, 30][i / 2]; 3], "pair {pair}: a wrong sum"),
                Err(e) => {
                    assert!(
                        matches!(e.kind(), ErrorKind::Config(_) | ErrorKind::Join(_)),
                        "pair {pair}, process {i}: {e}"
                    );
                    let e = e.to_string();
                    let clear = e.contains("another process listens there")
                        || e.contains("another job or holds another key")
                        || e.contains("did not answer within");
                    assert!(clear, "pair {pair}, process {i}: {e}");
                }
            }
        }
        match (right(0), right(1)) {
            (2, 0) => won[0] += 1,
            (0, 2) => won[1] += 1,
            // Each had one of the ports that both need.
            (0, 0) => {}
            _ => panic!("pair {pair}: {ended:?}"),
        }
    }
    assert!(won[0] + won[1] > pairs / 2, "{won:?}");
    println!("{pairs} pairs of jobs: {won:?} won their ports");
}
