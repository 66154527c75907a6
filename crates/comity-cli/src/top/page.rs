//! A picture of a job in a browser: one page from this process, which asks for the picture every second. Nothing comes from
//! elsewhere, and who does not have the token of the page's address gets nothing.
use super::{WatchedJob, picture::Picture};
use crate::here;
use crate::http::{self, Reply};
use crate::say::{CommandError, Exit, FAULTY};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const PAGE: &str = include_str!("page.html");
/// Several tabs share a look.
const FRESH: Duration = Duration::from_millis(700);
const HEADERS: &str = "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'\r\n";

/// An address of this host that only this host reaches.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let at: SocketAddr = text.parse().map_err(
        |_| "write an address and a port, such as 127.0.0.1:0 or [::1]:9401 (port 0 takes a free one)",
    )?;
    if !at.ip().is_loopback() {
        return Err("the page is not encrypted, so only 127.0.0.1 and [::1] are allowed; from another host use `ssh -L 9401:127.0.0.1:9401`".into());
    }
    Ok(at)
}

/// Answers until it is ended.
pub(super) fn serve(at: SocketAddr, job: WatchedJob) -> Exit {
    let opened = TcpListener::bind(at).and_then(|l| Ok((l.local_addr()?, l, here::token()?)));
    let (at, listener, token) =
        opened.map_err(|e| CommandError::usage(format!("--http {at}: cannot listen there: {e}")))?;
    // Without it nobody can come, also where a reader went away.
    let mut out = std::io::stdout();
    writeln!(out, "http://{at}/?token={token}\nCtrl-C ends it.")
        .and_then(|()| out.flush())
        .map_err(|e| CommandError::faulty(format!("standard output cannot be written: {e}")))?;
    let job = Mutex::new((job, Instant::now()));
    let picture = || {
        let mut held = job.lock().unwrap_or_else(PoisonError::into_inner);
        if held.1.elapsed() > FRESH {
            held.0.look();
            held.1 = Instant::now();
        }
        held.0.picture()
    };
    http::serve(&listener, |target| answer(target, &token, &picture));
    Ok(FAULTY)
}

fn answer(target: &str, token: &str, picture: &impl Fn() -> Picture) -> Reply {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let given = query.split('&').find_map(|p| p.strip_prefix("token="));
    // It takes as long wherever they differ.
    let is_same = |g: &str| verify_slices_are_equal(g.as_bytes(), token.as_bytes()).is_ok();
    if !given.is_some_and(is_same) {
        return Reply::refusal(
            "403 Forbidden",
            "this needs the token of the address that `comity top --http` printed",
        );
    }
    let (kind, body) = match path {
        "/" => ("text/html; charset=utf-8", PAGE.to_owned()),
        "/picture" => ("application/json", serde_json::to_string(&picture()).unwrap_or_default()),
        _ => return Reply::refusal("404 Not Found", "there is one page, at /"),
    };
    Reply { status: "200 OK", kind, headers: HEADERS, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_told_without_the_token() {
        let picture = Picture::default;
        let status = |target: &str| answer(target, "abc", &picture).status;
        for target in ["/", "/picture", "/?token=", "/?token=abd", "/picture?token=abcd", "/?Token=abc", "/x"]
        {
            assert!(status(target).starts_with("403"), "{target}");
        }
        for target in ["/?token=abc", "/picture?token=abc", "/picture?x=1&token=abc"] {
            assert!(status(target).starts_with("200"), "{target}");
        }
        assert!(status("/x?token=abc").starts_with("404"));
        assert!(answer("/picture?token=abc", "abc", &picture).body.contains("\"rows\":[]"));
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let own = PAGE.replace("http://www.w3.org/2000/svg", "").replace("url(#tip)", "");
        for word in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!own.contains(word), "{word}");
        }
    }

    #[test]
    fn only_this_host_can_ask() {
        assert!(address("127.0.0.1:0").is_ok() && address("[::1]:80").is_ok());
        assert!(address("0.0.0.0:80").unwrap_err().contains("ssh -L"));
        assert!(address("80").unwrap_err().contains("127.0.0.1:0"));
    }
}
