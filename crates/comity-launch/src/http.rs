//! HTTP as far as a scrape or a page needs it: GET, an answer, the end. A thread for each visitor, and a bound on everything that a stranger could
//! make large: connections, bytes of a request, time.
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Connections at a time; one more ends the oldest.
const MOST: usize = 32;
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

/// Answers until the process ends: `page` is given what stands after GET.
pub fn serve(listener: &TcpListener, page: impl Fn(&str) -> Reply + Sync) {
    let page = &page;
    let mut visits: VecDeque<Weak<TcpStream>> = VecDeque::new();
    std::thread::scope(|threads| {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    let stream = Arc::new(stream);
                    visits.retain(|visit| visit.strong_count() > 0);
                    visits.push_back(Arc::downgrade(&stream));
                    if visits.len() > MOST
                        && let Some(oldest) = visits.pop_front().and_then(|visit| visit.upgrade())
                    {
                        let _ = oldest.shutdown(Shutdown::Both);
                    }
                    let visit = Visit { stream, until: Instant::now() + LIMIT };
                    // Where there can be no other thread, the visitor sees the end of the connection.
                    let _ = std::thread::Builder::new().spawn_scoped(threads, move || visit.serve(page));
                }
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // The system had no descriptor left.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    });
}

/// A visitor's connection, for as long as it may take.
struct Visit {
    stream: Arc<TcpStream>,
    until: Instant,
}

impl Visit {
    fn serve(&self, page: &impl Fn(&str) -> Reply) -> io::Result<()> {
        let mut from = BufReader::new(self).take(LONGEST as u64 + 1);
        let mut request = Vec::new();
        let answer = loop {
            if let Some(answer) = answer(&request, page) {
                break answer;
            }
            if from.read_until(b'\n', &mut request)? == 0 {
                return Ok(());
            }
        };
        let mut visit = self;
        visit.write_all(&answer)?;
        // Nothing more goes out, and the visitor may read on: closing now could take the answer back.
        self.stream.shutdown(Shutdown::Write)?;
        io::copy(&mut visit, &mut io::sink()).map(drop)
    }

    /// Time that is left. None is an error of the call that is given it, and the visit ends.
    fn left(&self) -> Option<Duration> {
        Some(self.until.saturating_duration_since(Instant::now()))
    }
}

impl Read for &Visit {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left())?;
        (&*self.stream).read(buffer)
    }
}

impl Write for &Visit {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left())?;
        (&*self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
