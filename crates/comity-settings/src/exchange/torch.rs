//! torchrun's store as an exchange.
//!
//! Its two servers speak the same bytes, little-endian, over TCP: a client says a byte 0 and a magic number once,
//! then requests of one byte and their fields, where a text is its length in 8 bytes and itself. Set is 1 (key, value; no
//! answer), get is 3 (key; answers the value), wait is 6 (a count and keys; answers a byte 0 when all are there). Torch's own
//! client puts a `/` before every key.

use super::{
    Exchange, MAX_EXCHANGE_TEXT, begin_share, checked, forget_share, is_late, left, numbers, own_text,
    read_all, write_all,
};
use crate::{Error, HostPort, JoinCause, JoinError, Result, sys::give_up};
use std::{
    fmt, io,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

const VALIDATE: u8 = 0;
const MAGIC: u32 = 0x3C85_F7CE;
const SET: u8 = 1;
const GET: u8 = 3;
const WAIT: u8 = 6;

/// An exchange over the store that torchrun's agent runs.
#[derive(Debug)]
pub struct TorchExchange {
    at: HostPort,
    /// The store lives longer than the ranks, which torchrun may start again.
    job: String,
}

impl TorchExchange {
    pub fn new(at: HostPort, job: &str) -> Self {
        Self { at, job: job.to_owned() }
    }

    fn connect(&self, until: Instant) -> Result<TcpStream> {
        let addrs = self.at.resolve(until)?;
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        // The agent opens its store before it starts a rank; but another host's agent may be late.
        loop {
            for addr in &addrs {
                give_up()?;
                let tried = left(until)
                    .and_then(|left| TcpStream::connect_timeout(addr, left.min(Duration::from_secs(5))));
                match tried {
                    Ok(stream) => return Ok(stream),
                    Err(e) => last = e,
                }
            }
            if Instant::now() + Duration::from_millis(50) >= until {
                let step = "look at rank 0, and check MASTER_ADDR and MASTER_PORT";
                return Err(JoinError::new(format!("{self} cannot be reached: {last}; {step}"))
                    .at(self)
                    .into());
            }
            // WAIT(until): another try, to the join deadline
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The name under which the text of share number `n` lies.
    fn key(&self, n: usize) -> String {
        format!("/comity/{}/{n}", self.job)
    }

    fn talk(
        &self,
        stream: &mut TcpStream,
        n: usize,
        mine: Option<&str>,
        until: Instant,
    ) -> io::Result<Zeroizing<Vec<u8>>> {
        stream.set_nodelay(true)?;
        // The text may be secret, so it leaves no copies: there is room for all that is put in.
        let key = self.key(n);
        let set = key.len() + MAX_EXCHANGE_TEXT + 32;
        let mut ask = Zeroizing::new(Vec::with_capacity(set * (numbers(n).count() + 1) + 64));
        ask.push(VALIDATE);
        ask.extend(MAGIC.to_le_bytes());
        for (text, n) in mine.into_iter().flat_map(|text| numbers(n).map(move |n| (text, n))) {
            ask.push(SET);
            put(&mut ask, &self.key(n));
            put(&mut ask, text);
        }
        // Rank 0 waits and reads too: once it has its text back, the store has it.
        ask.push(WAIT);
        ask.extend(1u64.to_le_bytes());
        put(&mut ask, &key);
        write_all(stream, &ask, until)?;
        let mut there = [0xff];
        read_all(stream, &mut there, until)?;
        if there != [0] {
            return Err(io::Error::other(format!("an answer of kind {} to wait", there[0])));
        }
        let mut ask = vec![GET];
        put(&mut ask, &key);
        write_all(stream, &ask, until)?;
        let mut len = [0; 8];
        read_all(stream, &mut len, until)?;
        let len = u64::from_le_bytes(len);
        let len = usize::try_from(len).ok().filter(|n| *n <= MAX_EXCHANGE_TEXT);
        let len = len.ok_or_else(|| io::Error::other("a value that no rank gave"))?;
        let mut value = Zeroizing::new(vec![0; len]);
        read_all(stream, &mut value, until)?;
        Ok(value)
    }
}

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl fmt::Display for TorchExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "torchrun's store at {}", self.at)
    }
}

impl Exchange for TorchExchange {
    fn address(&self) -> Option<HostPort> {
        Some(self.at.clone())
    }

    fn share(&self, rank: usize, _size: usize, mine: Option<&str>, until: Instant) -> Result<String> {
        let mine = own_text(rank, mine)?;
        let name = format!("{self} {}", self.job);
        let n = begin_share(&name);
        let connected = self.connect(until);
        let read = connected.and_then(|mut stream| self.read(&mut stream, n, mine, until));
        read.inspect_err(|_| {
            if mine.is_none() {
                forget_share(&name, n);
            }
        })
    }
}

impl TorchExchange {
    /// Rank 0's text number `n`, which is `mine` there.
    fn read(&self, stream: &mut TcpStream, n: usize, mine: Option<&str>, until: Instant) -> Result<String> {
        let value = self.talk(stream, n, mine, until).map_err(|e| {
            let why = if is_late(&e) {
                let why = format!("rank 0 did not post its address in {self} in time");
                JoinError::new(why).of([0]).because(JoinCause::Missing)
            } else {
                JoinError::new(format!(
                    "{self} did not answer as such a store does ({e}); check MASTER_ADDR and MASTER_PORT"
                ))
            };
            Error::from(why.at(self))
        })?;
        checked(String::from_utf8_lossy(&value).into_owned(), self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net;
    use std::{
        collections::HashMap,
        io::Read,
        net::{SocketAddr, TcpListener},
        sync::{Arc, Condvar, Mutex},
    };

    type Values = Arc<(Mutex<HashMap<Vec<u8>, Vec<u8>>>, Condvar)>;

    fn text(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
        let mut len = [0; 8];
        stream.read_exact(&mut len)?;
        let mut text = vec![0; u64::from_le_bytes(len) as usize];
        stream.read_exact(&mut text)?;
        Ok(text)
    }

    /// Answers the exchange's requests as torch's server does.
    fn serve(mut stream: TcpStream, values: &Values) -> io::Result<()> {
        let mut hello = [0; 5];
        stream.read_exact(&mut hello)?;
        assert_eq!(hello, [0, 0xCE, 0xF7, 0x85, 0x3C]);
        loop {
            let mut kind = [0];
            stream.read_exact(&mut kind)?;
            match kind[0] {
                SET => {
                    let key = text(&mut stream)?;
                    let value = text(&mut stream)?;
                    values.0.lock().unwrap().insert(key, value);
                    values.1.notify_all();
                }
                WAIT => {
                    let mut count = [0; 8];
                    stream.read_exact(&mut count)?;
                    assert_eq!(u64::from_le_bytes(count), 1);
                    let key = text(&mut stream)?;
                    assert!(key.starts_with(b"/comity/"));
                    drop(values.1.wait_while(values.0.lock().unwrap(), |v| !v.contains_key(&key)).unwrap());
                    stream.write_all(&[0])?;
                }
                GET => {
                    let key = text(&mut stream)?;
                    let value = values.0.lock().unwrap()[&key].clone();
                    stream.write_all(&(value.len() as u64).to_le_bytes())?;
                    stream.write_all(&value)?;
                }
                other => panic!("request {other}"),
            }
        }
    }

    use std::io::Write;

    fn server() -> (HostPort, Values) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().into();
        let values = Values::default();
        let shared = Arc::clone(&values);
        thread::spawn(move || {
            for stream in listener.incoming().take(8).flatten() {
                let values = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &values));
            }
        });
        (at, values)
    }

    #[test]
    fn rank_1_waits_for_rank_0() {
        let (at, values) = server();
        let until = Instant::now() + Duration::from_secs(10);
        let exchange = TorchExchange::new(at, "run.0");
        let talk = |mine: Option<&str>| {
            let mut stream = exchange.connect(until).unwrap();
            String::from_utf8(exchange.talk(&mut stream, 0, mine, until).unwrap().to_vec()).unwrap()
        };
        thread::scope(|s| {
            let one = s.spawn(|| talk(None));
            thread::sleep(Duration::from_millis(30));
            assert_eq!(talk(Some("[::1]:5000")), "[::1]:5000");
            assert_eq!(one.join().unwrap(), "[::1]:5000");
        });
        assert_eq!(exchange.share(0, 2, Some("b:2"), until).unwrap(), "b:2");
        assert_eq!(exchange.share(0, 2, Some("c:3"), until).unwrap(), "c:3");
        let values = values.0.lock().unwrap();
        // The second share may be another try of the first, which a late rank asks for.
        for key in ["/comity/run.0/0", "/comity/run.0/1"] {
            assert_eq!(values[key.as_bytes()], b"c:3");
        }
    }

    #[test]
    fn a_missing_text_is_late_and_says_so() {
        let (at, _) = server();
        let start = Instant::now();
        let e =
            TorchExchange::new(at, "late").share(1, 2, None, start + Duration::from_millis(100)).unwrap_err();
        assert!(e.to_string().contains("rank 0 did not post"), "{e}");
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn other_servers_are_told_apart() {
        for answer in
            [&b"\x01"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = listener.local_addr().unwrap().into();
            let other = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut some = [0; 5];
                let _ = stream.read_exact(&mut some);
                let _ = stream.write_all(answer);
            });
            let until = Instant::now() + Duration::from_secs(5);
            let e = TorchExchange::new(at, "other").share(1, 2, None, until).unwrap_err().to_string();
            assert!(e.contains("MASTER_PORT"), "{e}");
            other.join().unwrap();
        }
    }

    #[test]
    fn nobody_there_is_an_error_in_time() {
        // Bound, and nobody listens: no other test gets the port meanwhile.
        let held = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
        net::bind(&held, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let at = SocketAddr::try_from(net::getsockname(&held).unwrap()).unwrap().into();
        let start = Instant::now();
        let e =
            TorchExchange::new(at, "none").share(1, 2, None, start + Duration::from_millis(200)).unwrap_err();
        assert!(e.to_string().contains("cannot be reached"), "{e}");
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}
