//! A world in which something between two ranks damages what passes: every rank's error names the link, and nobody hangs.

use super::*;
use crate::{Algorithm, Detection, Protection, ReduceOp};

/// Damage to the byte of this number on its way.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Flip(usize),
    Lose(usize),
    Cut(usize),
    /// So many bytes pass every tenth of a second.
    Slow(usize),
}

/// Listens in the place of `at`, and passes on what comes; `harm` strikes what goes back (from the one who listens) or there.
fn between(at: SocketAddr, harm: Harm, back: bool) -> SocketAddr {
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let here = listener.local_addr().unwrap();
    thread::spawn(move || {
        // The connection of the link; the control connections do not come this way.
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(at).unwrap();
        let near2 = near.try_clone().unwrap();
        let far2 = far.try_clone().unwrap();
        thread::spawn(move || pass(near, far, (!back).then_some(harm)));
        pass(far2, near2, back.then_some(harm));
    });
    here
}

fn pass(mut from: TcpStream, mut to: TcpStream, harm: Option<Harm>) {
    let mut buf = [0; 4096];
    let mut passed = 0;
    let most = if let Some(Harm::Slow(rate)) = harm { rate } else { buf.len() };
    while let Ok(n @ 1..) = from.read(&mut buf[..most]) {
        let mut piece = buf[..n].to_vec();
        let within = |at: usize| (passed..passed + n).contains(&at).then(|| at - passed);
        match harm {
            Some(Harm::Flip(at)) => within(at).into_iter().for_each(|i| piece[i] ^= 4),
            Some(Harm::Lose(at)) => {
                if let Some(i) = within(at) {
                    piece.remove(i);
                }
            }
            Some(Harm::Cut(at)) => {
                if let Some(i) = within(at) {
                    let _ = to.write_all(&piece[..i]);
                    break;
                }
            }
            Some(Harm::Slow(_)) => thread::sleep(Duration::from_millis(100)),
            None => {}
        }
        passed += n;
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

/// `n` ranks over TCP, each on a host of its own.
fn on_hosts(n: usize, adapt: impl Fn(Config) -> Config + Sync) -> Vec<Arc<Endpoint>> {
    world(n, |c| {
        let host = ["a", "b", "c"][c.rank()];
        adapt(c.host_name(host).links([LinkKind::Tcp]))
    })
}

/// Returns the error of each of three ranks when the connection of ranks 0 and 1 suffers `harm`, with its delay, and the address by which
/// rank 1 knew rank 0.
fn errors(harm: Harm, back: bool, count: usize) -> (Vec<(String, Duration)>, SocketAddr) {
    // Only what is lost without a trace takes the limit on silence to be found: the longer one is for the machine's sake.
    let detection = if matches!(harm, Harm::Lose(_)) { Detection::Fast } else { Detection::Normal };
    // Each pair has something to say both ways; in a ring rank 1 says nothing to rank 0.
    let mut all = on_hosts(3, |c| c.detection(detection).algorithm(Algorithm::TwoPhase));
    let at = between(all[0].card_of(0).addrs[0].at, harm, back);
    Arc::get_mut(&mut all[1]).unwrap().readdress(0, at);
    let told = each(0..3, |r| {
        let group = group(&all[r]);
        let begun = Instant::now();
        let mut x = vec![0u32; count];
        let error = (0..10_000).find_map(|_| {
            x.fill(1);
            let out = group.all_reduce(&mut x, ReduceOp::Sum);
            assert!(out.is_err() || x.iter().all(|v| *v == 3), "rank {r}: a wrong sum");
            out.err()
        });
        (error.expect("an error").to_string(), begun.elapsed())
    });
    (told, at)
}

#[test]
fn damage_is_named_by_all_ranks() {
    for (case, count) in [8, 700, 30_000, 500_000].into_iter().enumerate() {
        let back = case % 2 == 0;
        // Behind the handshake, within the first calls.
        let (told, at) = errors(Harm::Flip(1000 + 777 * case), back, count);
        let (from, to) = if back { (0, 1) } else { (1, 0) };
        let hosts = ["a", "b"];
        let at = at.to_string();
        for (rank, (words, _)) in told.iter().enumerate() {
            let sender = format!("rank {from} (host {}, ", hosts[from]);
            let receiver = format!("to rank {to} (host {}, ", hosts[to]);
            let is_named = words.starts_with(&sender) && words.contains(&receiver);
            assert!(is_named && words.contains("sent a damaged frame"), "rank {rank} says: {words}");
            // Rank 0 sees the address of what stands between.
            assert!(to == 0 || words.contains(&at), "rank {rank} says: {words}");
        }
    }
}

#[test]
fn a_connection_that_is_cut_is_an_error_on_all_ranks() {
    let (told, _) = errors(Harm::Cut(50_000), true, 30_000);
    for (rank, (words, _)) in told.iter().enumerate() {
        assert!(words.contains("its connection, over TCP from "), "rank {rank} says: {words}");
    }
}

#[test]
fn a_slow_connection_is_not_taken_for_a_broken_one() {
    let mut all = on_hosts(2, |c| c.detection(Detection::Fast).secure(Protection::Data));
    let at = between(all[0].card_of(0).addrs[0].at, Harm::Slow(1000), true);
    Arc::get_mut(&mut all[1]).unwrap().readdress(0, at);
    each(0..2, |r| {
        let group = group(&all[r]);
        // One sealed frame, of which nothing can be given out for longer than a connection may be quiet in the middle of one.
        let mut x = vec![r as u8; 30_000];
        group.broadcast(&mut x, 0).unwrap();
        assert!(x.iter().all(|v| *v == 0));
    });
}

#[test]
fn lost_bytes_do_not_make_anyone_wait_for_ever() {
    // Within the last frame of a message: no more bytes follow that would complete it.
    let (told, _) = errors(Harm::Lose(2000), true, 30_000);
    for (rank, (words, took)) in told.iter().enumerate() {
        assert!(
            words.contains("rank 0 (host a, ") && words.contains("over TCP from "),
            "rank {rank} says: {words}"
        );
        assert!(*took < Duration::from_secs(10), "rank {rank} says after {took:?}: {words}");
    }
}
