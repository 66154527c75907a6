//! Three host launchers in one process: that of rank 0's host, and two others, with a launcher between.

use super::*;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

const LONG: Duration = Duration::from_secs(20);

/// The host launchers by their hosts' places, and what the launcher has passed on.
#[derive(Default)]
struct Wires {
    guards: OnceLock<Vec<Master>>,
    most: Mutex<BTreeMap<u32, usize>>,
}

impl Wires {
    /// Passes a packet on like the launcher.
    fn pass(&self, from: u32, mut packet: MasterPacket) {
        let decoded = MasterPacket::decode(&packet.encode());
        assert_eq!(decoded.as_ref(), Some(&packet));
        if let MasterPart::Bytes(bytes) = &packet.part {
            *self.most.lock().unwrap().entry(from).or_default() += bytes.len();
        }
        let to = if from == 0 {
            packet.host
        } else {
            packet.host = from;
            0
        };
        let until = Instant::now() + LONG;
        while self.guards.get().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.guards.get().unwrap()[to as usize].take(packet);
    }

    fn passed(&self, from: u32) -> usize {
        self.most.lock().unwrap().get(&from).copied().unwrap_or_default()
    }
}

/// Rank 0's port, and where the ranks of hosts 1 and 2 find it.
fn job() -> (Arc<Wires>, u16, [SocketAddr; 2]) {
    // A port that is free, and where nobody listens yet.
    let port = TcpListener::bind((crate::address::loopback(), 0)).unwrap().local_addr().unwrap().port();
    let wires = Arc::new(Wires::default());
    let begin = |host: u32| {
        let wires = Arc::clone(&wires);
        Master::start((host == 0).then_some(port), move |p| wires.pass(host, p)).unwrap()
    };
    let ((zero, at), (one, first), (two, second)) = (begin(0), begin(1), begin(2));
    assert_eq!(at.port(), port);
    assert!(wires.guards.set(vec![zero, one, two]).is_ok());
    (wires, port, [first, second])
}

fn dial(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

#[test]
fn ranks_of_other_hosts_reach_rank_0_though_it_listens_late() {
    let (_wires, port, places) = job();
    let mut ranks = [places[0], places[1], places[1]].map(dial);
    for (i, rank) in ranks.iter_mut().enumerate() {
        rank.write_all(&[i as u8, b'?']).unwrap();
    }
    std::thread::sleep(AGAIN * 2);
    let listener = TcpListener::bind((crate::address::loopback(), port)).unwrap();
    let mut ends: Vec<TcpStream> = ranks.iter().map(|_| listener.accept().unwrap().0).collect();
    let mut seen = Vec::new();
    for end in &mut ends {
        end.set_read_timeout(Some(LONG)).unwrap();
        let mut word = [0; 2];
        end.read_exact(&mut word).unwrap();
        end.write_all(&[word[0] + 10]).unwrap();
        seen.push(word[0]);
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);
    for (i, rank) in ranks.iter_mut().enumerate() {
        let mut answer = [0];
        rank.read_exact(&mut answer).unwrap();
        assert_eq!(usize::from(answer[0]), i + 10);
    }
    // The end of one is the end of its other side, in both directions.
    drop(ends);
    assert!(ranks.iter_mut().all(|rank| rank.read(&mut [0]).unwrap() == 0));
}

#[test]
fn much_goes_through_whole_and_little_waits_on_the_way() {
    const MUCH: usize = 3 << 20;
    let (wires, port, places) = job();
    let listener = TcpListener::bind((crate::address::loopback(), port)).unwrap();
    let mut rank = dial(places[0]);
    let writer = std::thread::spawn(move || {
        let all: Vec<u8> = (0..MUCH).map(|i| (i % 251) as u8).collect();
        // An error is seen as too few bytes at the other end.
        let _ = rank.write_all(&all);
        rank
    });
    let (mut end, _) = listener.accept().unwrap();
    end.set_read_timeout(Some(LONG)).unwrap();
    // Nobody reads: the window fills, and no more is passed on than the sockets there hold.
    let until = Instant::now() + LONG;
    while wires.passed(1) < WINDOW && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(wires.passed(1) >= WINDOW);
    let mut got = vec![0; MUCH];
    end.read_exact(&mut got).unwrap();
    assert!(got.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8));
    assert_eq!(wires.passed(1), MUCH);
    drop(writer.join().unwrap());
    assert_eq!(end.read(&mut [0]).unwrap(), 0);
}

#[test]
fn nonsense_is_no_packet() {
    for body in
        [&b""[..], b"\0\0\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\0x", b"\0\0\0\0\0\0\0\0t\0", b"\0\0\0\0\0\0\0\0oo"]
    {
        assert_eq!(MasterPacket::decode(body), None);
    }
}
