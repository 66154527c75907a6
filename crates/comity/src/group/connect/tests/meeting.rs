//! Meeting of ranks: those that come, are missing or are refused, and strangers.

use super::*;

#[test]
fn ranks_meet_open_and_talk() {
    for n in [1, 2, 4, 8] {
        let all = world(n, |c| c);
        each(0..n, |r| {
            let e = &all[r];
            assert_eq!((e.rank(), e.peers().len(), e.hosts().len()), (r, n, n));
            assert!(e.hosts().iter().all(|h| *h == 0) && e.cores() > 0);
            assert!(e.peers().iter().all(|p| p.pid == Some(std::process::id()) && p.host.is_some()));
            let members: Vec<usize> = (0..n).collect();
            let (status, mut links) = open(e, 0, &members);
            let expected = if cfg!(target_os = "linux") { LinkKind::Shm } else { LinkKind::Tcp };
            assert!(kinds(&links).iter().enumerate().all(|(i, k)| *k == (i != r).then_some(expected)));
            talk(r, &mut links);
            e.leave(0);
            assert!(status.failure().is_none());
        });
    }
}

#[test]
fn tcp_over_several_connections_and_addresses() {
    let two = [SocketAddr::from(([127, 0, 0, 1], 0)), SocketAddr::from(([127, 0, 0, 2], 0))];
    let all = world(3, |c| {
        let c = c.links([LinkKind::Tcp]).connections(2);
        if cfg!(target_os = "linux") { c.addrs(two) } else { c }
    });
    each(0..3, |r| {
        let (_watch, mut links) = open(&all[r], 5, &[2, 0, 1]);
        let me = [1, 2, 0][r];
        assert!(kinds(&links).iter().enumerate().all(|(i, k)| *k == (i != me).then_some(LinkKind::Tcp)));
        talk(me, &mut links);
    });
}

#[test]
fn a_thread_sends_where_one_may() {
    // By rank: what it wishes, and whether it gets a thread for its link to the other.
    for (wishes, connections, gets) in [
        ([1, 1], None, [true, true]),
        ([1, 0], None, [true, false]),
        ([0, 0], Some(2), [false, false]),
        ([1, 1], Some(1), [false, false]),
        ([1, 1], Some(4), [false, false]),
    ] {
        let all = world(2, |c| {
            let wish = wishes[c.rank()];
            let c = c.links([LinkKind::Tcp]).send_threads(wish);
            if let Some(n) = connections { c.connections(n) } else { c }
        });
        each(0..2, |r| {
            let (_watch, mut links) = open(&all[r], 0, &[0, 1]);
            let link = links[1 - r].as_deref_mut().unwrap();
            link.announce(1 << 20, true, crate::transport::Stays::No);
            assert_eq!(link.progress().runs_ahead, gets[r], "rank {r} of {wishes:?}, {connections:?}");
            link.announce(8, true, crate::transport::Stays::No);
            talk(r, &mut links);
        });
    }
}

#[test]
fn ipv6() {
    let store = Store::start((Ipv6Addr::LOCALHOST, 0).into(), 2, &Key::from(KEY), "job", LONG).unwrap();
    let all = each(0..2, |r| join_job(&config(r, 2, store.addr()).links([LinkKind::Tcp])).unwrap());
    each(0..2, |r| talk(r, &mut open(&all[r], 0, &[0, 1]).1));
}

#[test]
fn hosts_that_differ_use_tcp() {
    let all = world(4, |c| {
        let host = ["b", "a"][c.rank() / 2];
        c.host_name(host)
    });
    assert!(all.iter().all(|e| e.hosts() == [0, 0, 1, 1]));
    each(0..4, |r| {
        let (_w, mut links) = open(&all[r], 0, &[0, 1, 2, 3]);
        let tcp = kinds(&links).iter().filter(|k| **k == Some(LinkKind::Tcp)).count();
        assert_eq!(tcp, if cfg!(target_os = "linux") { 2 } else { 3 });
        talk(r, &mut links);
    });
}

#[test]
fn unix_sockets_are_taken_where_they_are_named_and_only_within_a_host() {
    for (hosts, kinds_of, expected) in [
        (["a", "a"], &[LinkKind::Unix, LinkKind::Tcp][..], LinkKind::Unix),
        (["a", "b"], &[LinkKind::Unix, LinkKind::Tcp], LinkKind::Tcp),
        (["a", "a"], &[LinkKind::Unix], LinkKind::Unix),
    ] {
        let all = world(2, |c| {
            let host = hosts[c.rank()];
            c.host_name(host).links(kinds_of.iter().copied())
        });
        each(0..2, |r| {
            let (_w, mut links) = open(&all[r], 0, &[0, 1]);
            assert_eq!(kinds(&links)[1 - r], Some(expected), "{hosts:?} {kinds_of:?}");
            talk(r, &mut links);
        });
    }
}

#[test]
fn links_that_no_two_allow_are_an_error() {
    let all = world(2, |c| {
        let kind = [LinkKind::Tcp, LinkKind::Shm][c.rank()];
        c.links([kind])
    });
    let errors = each(0..2, |r| all[r].open(0, &[0, 1], &status(2), until()).unwrap_err().to_string());
    assert!(errors[1].contains("rank 0") && errors[1].contains("COMITY_LINKS"), "{errors:?}");
    assert!(errors[0].contains("COMITY_LINKS"), "{errors:?}");
}

#[test]
fn rank_0_runs_the_store_and_may_come_late() {
    let (_held, free) = reserved();
    let all = each(0..3, |r| {
        if r == 0 {
            thread::sleep(Duration::from_millis(150));
        }
        let c = Config::new(r, 3).rendezvous(&free.to_string()).unwrap().key(Key::from(KEY));
        join_job(&c.join_timeout(LONG).connect_when(ConnectTiming::All)).unwrap()
    });
    each(0..3, |r| talk(r, &mut open(&all[r], 0, &[0, 1, 2]).1));
    // Rank 0 may leave first; the others still have each other.
    let mut all = all;
    drop(all.remove(0));
    each(0..2, |i| talk(i, &mut open(&all[i], 1, &[1, 2]).1));
}

#[test]
fn without_a_key() {
    let zeros = Key::from([0; 32]);
    let store = Store::start((LOOPBACK, 0).into(), 2, &zeros, "job", LONG).unwrap();
    let c = |r| {
        Config::new(r, 2).store(&store.addr().to_string()).unwrap().job("job").insecure().join_timeout(LONG)
    };
    each(0..2, |r| join_job(&c(r)).map(drop).unwrap());
}

#[test]
fn everyone_hears_who_is_missing() {
    let limit = Duration::from_millis(1500);
    let begun = Instant::now();
    let store = store(4, limit);
    let errors = each([0, 2], |r| join_job(&config(r, 4, store.addr())).unwrap_err());
    assert!(begun.elapsed() >= limit && begun.elapsed() < limit + Duration::from_secs(5));
    for e in errors {
        assert_eq!(
            e.to_string(),
            format!(
                "only 2 of 4 ranks joined within 1.5 s: missing ranks 1, 3 (never connected); the ranks meet at {}; start these ranks, or look at their own output",
                store.addr()
            )
        );
        assert!(
            matches!(e.kind(), ErrorKind::Join(why) if why.cause == crate::JoinCause::Missing && e.ranks() == [1, 3]),
            "{e}"
        );
    }
    let e = join_job(&config(3, 4, store.addr())).unwrap_err();
    let late = e.to_string();
    assert!(late.contains("rank 3 came too late") && late.contains("missing ranks 1, 3"), "{late}");
    assert_eq!(e.ranks(), [1, 3], "{late}");
}

#[test]
fn the_least_patient_rank_decides() {
    let store = store(3, LONG);
    let patience = [3000, 20_000];
    let errors = each(0..2, |r| {
        let c = config(r, 3, store.addr()).join_timeout(Duration::from_millis(patience[r]));
        join_job(&c).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|e| e.contains("missing rank 2 (never connected)")), "{errors:?}");
}

#[test]
fn another_key_or_job_is_refused_and_harms_nobody() {
    let store = store(2, LONG);
    let begun = Instant::now();
    for c in [config(0, 2, store.addr()).key(Key::from([8; 32])), config(0, 2, store.addr()).job("other")] {
        let e = join_job(&c).unwrap_err().to_string();
        assert!(
            e.contains("rank 0: the store at 127.0.0.1") && e.contains("another job or holds another key"),
            "{e}"
        );
    }
    assert!(begun.elapsed() < LONG / 2);
    each(0..2, |r| join_job(&config(r, 2, store.addr())).map(drop).unwrap());
}

#[test]
fn one_store_serves_group_after_group() {
    let store = store(2, LONG);
    for _ in 0..3 {
        let all = each(0..2, |r| join_job(&config(r, 2, store.addr())).unwrap());
        each(0..2, |r| talk(r, &mut open(&all[r], 0, &[0, 1]).1));
    }
}

#[test]
fn nobody_answers() {
    let free = TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap();
    let c = config(1, 2, free).join_timeout(Duration::from_millis(200));
    let e = join_job(&c).unwrap_err().to_string();
    assert!(e.contains(&free.to_string()) && e.contains("0.2 s") && e.contains("launcher"), "{e}");
}

#[test]
fn what_answers_is_something_else() {
    let other = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let at = other.local_addr().unwrap();
    thread::scope(|s| {
        s.spawn(move || {
            let (mut c, _) = other.accept().unwrap();
            c.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            let _ = c.read(&mut [0; 1024]);
        });
        let e = join_job(&config(1, 2, at)).unwrap_err().to_string();
        assert!(e.contains("is not Comity"), "{e}");
    });
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let at = taken.local_addr().unwrap();
    let e = Store::start(at, 2, &Key::from(KEY), "job", LONG).unwrap_err().to_string();
    assert!(e.contains(&at.to_string()) && e.contains("another process listens there"), "{e}");

    let store = store(2, LONG);
    let errors = each(0..2, |r| {
        let c = config(r, 2, store.addr());
        join_job(&if r == 1 { c.addrs([at]) } else { c }).unwrap_err().to_string()
    });
    assert!(errors[1].contains(&format!("rank 1 cannot listen at {at}")), "{errors:?}");
    assert!(errors[0].contains("rank 1 cannot join") && errors[0].contains(&at.to_string()), "{errors:?}");

    let e = Store::start(([0, 0, 0, 0], 0).into(), 2, &Key::from(KEY), "job", LONG).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Config(_)), "{e}");
}

#[test]
fn strangers_are_borne_while_ranks_meet() {
    let store = store(4, LONG);
    let crowd = strangers(store.addr(), 300);
    let all = each(0..4, |r| join_job(&config(r, 4, store.addr()).links([LinkKind::Tcp])).unwrap());
    let more: Vec<_> = all.iter().flat_map(|e| strangers(e.card_of(e.rank()).addrs[0].at, 100)).collect();
    each(0..4, |r| {
        let (status, mut links) = open(&all[r], 0, &[0, 1, 2, 3]);
        talk(r, &mut links);
        assert!(status.failure().is_none());
    });
    drop((crowd, more));
}

#[test]
fn strangers_are_sent_away_in_time() {
    let store = store(2, LONG);
    // The store counts from when it takes the connection, which is later than this.
    let begun = Instant::now();
    let mut idle = TcpStream::connect(store.addr()).unwrap();
    idle.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
    assert!(begun.elapsed() > Duration::from_secs(1));
}

#[test]
fn a_store_that_ends_is_named() {
    let told = |pause| {
        let store = store(3, LONG);
        let at = store.addr();
        let ranks: Vec<_> = (0..2).map(|r| thread::spawn(move || join_job(&config(r, 3, at)))).collect();
        thread::sleep(pause);
        drop(store);
        let words = ranks.into_iter().map(|r| r.join().unwrap().unwrap_err().to_string());
        words.map(|e| e.contains(&format!("lost the store at {at}")).then_some(()).ok_or(e)).collect()
    };
    // Time enough to come to it, or on a busy machine more of it.
    let first: Result<Vec<()>, String> = told(Duration::from_millis(1500));
    first.or_else(|_| told(LONG / 2)).unwrap();
}

#[test]
fn four_ranks_are_up_quickly() {
    let up = |_| {
        let store = store(4, LONG);
        let begun = Instant::now();
        let all = each(0..4, |r| {
            let e = join_job(&config(r, 4, store.addr())).unwrap();
            let opened = open(&e, 0, &[0, 1, 2, 3]);
            (begun.elapsed(), e, opened)
        });
        all.iter().map(|a| a.0).max().unwrap()
    };
    // The best of some, because the machine may be busy.
    let mut times = (0..50).map(up).inspect(|took| println!("4 ranks joined and opened in {took:?}"));
    assert!(times.any(|took| took < Duration::from_millis(150)), "never within 150 ms");
}
