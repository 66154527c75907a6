//! Connections of those who do not belong to a job: they say nothing, nonsense, or half of something.

use super::net::Listeners;
use scope::Rng;
use std::{
    io::Write,
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

/// Dropping it ends all connections.
#[derive(Debug)]
pub(super) struct Strangers {
    random: Rng,
    connected: Vec<TcpStream>,
}

impl Strangers {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Rng::new(seed), connected: Vec::new() }
    }

    /// So many connect to what listens, by TCP and by name.
    pub(super) fn visit(&mut self, listeners: &Listeners, count: usize) {
        for _ in 0..count {
            if let Some(port) = some(&mut self.random, &listeners.ports) {
                let at = SocketAddr::from(([127, 0, 0, 1], *port));
                if let Ok(stream) = TcpStream::connect_timeout(&at, Duration::from_millis(200)) {
                    self.bother(&stream, |s, how| s.shutdown(how));
                    self.connected.push(stream);
                }
            }
            #[cfg(target_os = "linux")]
            if let Some(name) = some(&mut self.random, &listeners.names) {
                use std::os::{
                    linux::net::SocketAddrExt,
                    unix::net::{SocketAddr, UnixStream},
                };
                let stream = SocketAddr::from_abstract_name(name).and_then(|a| UnixStream::connect_addr(&a));
                if let Ok(stream) = stream {
                    self.bother(&stream, |s, how| s.shutdown(how));
                }
            }
        }
    }

    fn bother<S>(&mut self, mut stream: &S, end: impl Fn(&S, Shutdown) -> std::io::Result<()>)
    where
        for<'a> &'a S: Write,
    {
        let length = self.random.below(300);
        let noise: Vec<u8> = (0..length).map(|_| self.random.below(256) as u8).collect();
        let words: &[u8] = match self.random.below(4) {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            _ => &noise,
        };
        // Whoever hangs up on us is right.
        let _ = stream.write_all(words);
        if self.random.below(3) == 0 {
            let _ = end(stream, Shutdown::Write);
        }
    }
}

/// Random element, if there is any.
fn some<'a, T>(random: &mut Rng, all: &'a [T]) -> Option<&'a T> {
    (!all.is_empty()).then(|| random.pick(all))
}
