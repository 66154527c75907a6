//! HTTP as far as a scrape or a page needs it: GET, an answer, the end. One thread, and a bound on everything that
//! a stranger could make large: connections, bytes of a request, time.
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Connections at a time; one more ends the oldest.
const MOST: usize = 32;
/// Bytes of a request.
const LONGEST: usize = 8 << 10;
/// Limit on a visit, from the connection to the end of the answer.
const LIMIT: Duration = Duration::from_secs(5);
const TEXT: &str = "text/plain; charset=utf-8";

/// An answer.
#[derive(Debug, Default)]
pub struct Reply {
    /// "200 OK"
    pub status: &'static str,
    pub kind: &'static str,
    /// More headers, each with its end of line.
    pub headers: &'static str,
    pub body: String,
}

impl Reply {
    /// Answers that a page is not there, or may not be seen.
    pub fn refusal(status: &'static str, why: &str) -> Self {
        Self { status, kind: TEXT, headers: "", body: format!("{why}\n") }
    }
}

/// A visitor's connection.
struct Visit {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Option<Vec<u8>>,
    sent: usize,
    until: Instant,
}

/// Answers until the process ends: `page` is given what stands after GET.
pub fn serve(listener: &TcpListener, page: impl Fn(&str) -> Reply) {
    if listener.set_nonblocking(true).is_err() {
        return;
    }
    let mut visits: VecDeque<Visit> = VecDeque::new();
    // Until then no new visitor is taken: the system had no descriptor left.
    let mut pause: Option<Instant> = None;
    loop {
        let now = Instant::now();
        visits.retain(|v| v.until > now);
        pause = pause.filter(|p| *p > now);
        let first = visits.iter().map(|v| v.until).chain(pause).min();
        let left = first.and_then(|t| Timespec::try_from(t.saturating_duration_since(now)).ok());
        let door = if pause.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(listener, door)];
        fds.extend(
            visits.iter().map(|v| {
                PollFd::new(&v.stream, if v.is_answering() { PollFlags::OUT } else { PollFlags::IN })
            }),
        );
        let waited = rustix::event::poll(&mut fds, left.as_ref());
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if waited.is_err() {
            continue;
        }
        let mut visit = ready.iter().skip(1);
        visits.retain_mut(|v| !visit.next().is_some_and(|&r| r) || v.step(&page));
        if ready.first().is_some_and(|&r| r) {
            match listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_ok() {
                        visits.push_back(Visit::new(stream));
                    }
                    if visits.len() > MOST {
                        visits.pop_front();
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
                Err(_) => pause = Some(now + Duration::from_millis(100)),
            }
        }
    }
}

impl Visit {
    fn new(stream: TcpStream) -> Self {
        let until = Instant::now() + LIMIT;
        Self { stream, request: Vec::new(), answer: None, sent: 0, until }
    }

    fn is_answering(&self) -> bool {
        self.answer.as_ref().is_some_and(|a| self.sent < a.len())
    }

    /// Goes as far as it can; false when the visit is over.
    fn step(&mut self, page: &impl Fn(&str) -> Reply) -> bool {
        loop {
            let moved = match &self.answer {
                Some(answer) if self.sent < answer.len() => {
                    let n = self.stream.write(&answer[self.sent..]);
                    self.sent += *n.as_ref().unwrap_or(&0);
                    // Nothing more goes out, and the visitor may read on: closing now could take the answer back.
                    if self.sent == answer.len() && self.stream.shutdown(Shutdown::Write).is_err() {
                        return false;
                    }
                    n
                }
                Some(_) => self.stream.read(&mut [0; 1024]),
                None => self.listen(page),
            };
            match moved {
                Ok(0) => return false,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return e.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    fn listen(&mut self, page: &impl Fn(&str) -> Reply) -> std::io::Result<usize> {
        let mut piece = [0; 1024];
        let n = self.stream.read(&mut piece)?;
        self.request.extend_from_slice(&piece[..n]);
        if let Some(answer) = answer(&self.request, page) {
            self.answer = Some(answer);
            self.request = Vec::new();
        }
        Ok(n)
    }
}

/// The answer to what has come of a request; `None` while more is to come.
fn answer(request: &[u8], page: &impl Fn(&str) -> Reply) -> Option<Vec<u8>> {
    if request.len() > LONGEST {
        return Some(refusal("431 Request Header Fields Too Large", "", "the request is too long"));
    }
    let whole = request.windows(4).any(|w| w == b"\r\n\r\n") || request.windows(2).any(|w| w == b"\n\n");
    if !whole {
        return None;
    }
    let line = request.split(|b| *b == b'\r' || *b == b'\n').next().and_then(|l| str::from_utf8(l).ok());
    let mut words = line.unwrap_or_default().split(' ');
    let method = words.next();
    let target = words.next();
    let version = words.next();
    let is_http = version.is_some_and(|v| v.starts_with("HTTP/1.")) && words.next().is_none();
    let (Some(method), Some(target), true) = (method, target, is_http) else {
        return Some(refusal("400 Bad Request", "", "this is no request of HTTP/1"));
    };
    if method != "GET" {
        return Some(refusal("405 Method Not Allowed", "Allow: GET\r\n", "only GET is answered"));
    }
    Some(reply(&page(target)))
}

fn refusal(status: &'static str, headers: &'static str, why: &str) -> Vec<u8> {
    reply(&Reply { headers, ..Reply::refusal(status, why) })
}

fn reply(Reply { status, kind, headers, body }: &Reply) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn start(page: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            serve(&listener, |target| match target {
                "/a" | "/a?x=1" => {
                    Reply { status: "200 OK", kind: TEXT, body: page.repeat(100_000), ..Reply::default() }
                }
                _ => Reply::refusal("404 Not Found", "no"),
            })
        });
        addr
    }

    fn connect(addr: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn ask(addr: SocketAddr, request: &[u8]) -> String {
        let mut stream = connect(addr);
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn one_page_is_served_and_nothing_else() {
        let addr = start("a 1\n");
        let text = ask(addr, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("Content-Length: 400000") && body == "a 1\n".repeat(100_000), "{head}");
        assert!(ask(addr, b"GET /a?x=1 HTTP/1.0\n\n").starts_with("HTTP/1.1 200"));
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"GET /a/ HTTP/1.1\r\n\r\n", "404"),
            (b"POST /a HTTP/1.1\r\n\r\n", "405"),
            (b"GET /a\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
            (b"\xff\xfe\r\n\r\n", "400"),
            (b"GET /a HTTP/2 x\r\n\r\n", "400"),
            (&[b'a'; LONGEST + 1], "431"),
        ] {
            let text = ask(addr, request);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {text}");
        }
    }

    #[test]
    fn idle_strangers_do_not_keep_others_out() {
        let addr = start("a 1\n");
        let mut idle: Vec<_> = (0..3 * MOST).map(|_| connect(addr)).collect();
        for stranger in &mut idle {
            let _ = stranger.write_all(b"GET /");
        }
        assert!(ask(addr, b"GET /a HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        // Each of them is let go after its time.
        for mut stranger in idle {
            let end = stranger.read(&mut [0; 64]);
            assert!(matches!(end, Ok(0)) || end.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset));
        }
    }
}
