//! `comity launch --elastic MIN[:MAX]`: a job that goes on without ranks, and takes in processes.
use crate::machine::ElasticTerms;
use comity::Key;
use comity::tools::Store;
use comity_base::sys::Waker;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// Number of times that a rank is started again unless the user says otherwise. The pauses before these take three minutes in all: a program
/// that cannot run ends then, and a rank that dies now and then may do so for days.
pub const RESTARTS: u32 = 10;

/// Variable that names the file with the key.
pub const KEY_FILE: &str = "COMITY_KEY_FILE";

/// `--elastic`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elastic {
    min: usize,
    max: Option<usize>,
}

impl Elastic {
    /// Reads `MIN[:MAX]`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once(':').map_or((text, None), |(min, max)| (min, Some(max)));
        let number = |text: &str| text.parse::<usize>().ok().filter(|n| (1..=comity::MAX_SIZE).contains(n));
        let wrong = || {
            format!(
                "write the fewest ranks with which the job goes on, from 1 to {}, and after a colon the most, as in 2 or 2:8",
                comity::MAX_SIZE
            )
        };
        let min = number(min).ok_or_else(wrong)?;
        let max = max.map(|max| number(max).ok_or_else(wrong)).transpose()?;
        if max.is_some_and(|max| max < min) {
            return Err(format!("MAX is below MIN; {}", wrong()));
        }
        Ok(Self { min, max })
    }

    /// Terms of a job that starts with `size` ranks, and the most processes that it takes in beside them.
    pub(crate) fn terms(self, size: usize, restarts: u32) -> Result<(ElasticTerms, usize), String> {
        let Self { min, max } = self;
        if size < 2 {
            return Err("--elastic: a job that starts with one rank has nobody to go on without it; start two or more (-n 2)".into());
        }
        if min > size {
            return Err(format!(
                "--elastic {min}: the job starts with {size} ranks, and needs {min} at least; start more, or ask for fewer"
            ));
        }
        if let Some(max) = max.filter(|max| *max < size) {
            return Err(format!(
                "--elastic {min}:{max}: the job starts with {size} ranks, more than {max}; start fewer, or allow more"
            ));
        }
        Ok((ElasticTerms { fewest: min, restarts }, max.map_or(usize::MAX, |max| max - size)))
    }
}

/// Key that the user gives for a job that others may join, and none where the launcher makes one.
pub(crate) fn given_key(insecure: bool) -> Result<Option<Key>, String> {
    match std::env::var_os(KEY_FILE).filter(|path| !path.is_empty()) {
        _ if insecure => Ok(Some(Key::from([0; 32]))),
        None => Ok(None),
        Some(path) => Key::from_file(path).map(Some).map_err(|e| format!("{KEY_FILE}: {e}")),
    }
}

/// Name of such a job.
pub fn name() -> String {
    std::env::var("COMITY_JOB").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "elastic".into())
}

pub(crate) fn how_to_join(store: &str, insecure: bool) -> Option<String> {
    let trust = match (insecure, std::env::var_os(KEY_FILE)) {
        (true, _) => "--insecure".into(),
        (false, Some(path)) if !path.is_empty() => format!("--key-file {}", path.display()),
        _ => return None,
    };
    Some(format!("others join with `comity join {store} {trust} -- COMMAND`"))
}

/// Sentence on a rank without which the job goes on. `ended`: the rank, and its end.
pub(crate) fn lost(ended: &str, again: Option<(u32, Duration)>, terms: Option<ElasticTerms>) -> String {
    let most = terms.map_or(0, |terms| terms.restarts);
    match again {
        Some((number, pause)) => format!(
            "{ended}; the job goes on, and the rank is started again in {} s ({number} of {most})",
            pause.as_secs()
        ),
        None => format!("{ended}; the job goes on without it"),
    }
}

/// Sentence on a process that the group took in: a rank of this launcher, or another one.
pub(crate) fn joined(rank: Option<String>, guests: usize) -> String {
    match rank {
        Some(rank) => format!("{rank} has joined"),
        None => format!("processes in the job that others started: {guests}"),
    }
}

/// Processes that the running job took in, as its store tells.
#[derive(Debug)]
pub(crate) struct TakenIn {
    /// The rank in whose place each came, or none, and how many guests there are then.
    come: Receiver<(Option<usize>, usize)>,
    waker: Arc<Waker>,
}

impl TakenIn {
    /// Hears this store, which takes in at most so many beside the ranks.
    pub(crate) fn of(store: &Store, guests: usize) -> io::Result<Self> {
        let (tell, come) = mpsc::channel();
        let waker = Arc::new(Waker::new()?);
        let taken_in = Self { come, waker: Arc::clone(&waker) };
        store.admit(guests);
        store.on_taken_in(move |place, guests| {
            // A launcher that does not take them has ended.
            let _ = tell.send((place, guests));
            waker.wake();
        });
        Ok(taken_in)
    }

    pub(crate) fn want(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.waker.fd(), PollFlags::IN)
    }

    /// The ranks that were taken in, and how many guests there are then.
    pub(crate) fn take(&self) -> Vec<(Option<usize>, usize)> {
        self.waker.drain();
        self.come.try_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_and_the_most_ranks() {
        let terms = |text: &str, size| Elastic::parse(text).and_then(|e| e.terms(size, 3));
        let right = |fewest, guests| Ok((ElasticTerms { fewest, restarts: 3 }, guests));
        assert_eq!(terms("2", 4), right(2, usize::MAX));
        assert_eq!(terms("2:4", 4), right(2, 0));
        assert_eq!(terms("1:9", 4), right(1, 5));
        for (text, size, word) in
            [("0", 4, "2:8"), ("2:", 4, "2:8"), ("x", 4, "2:8"), ("3:2", 4, "below"), ("5", 4, "needs 5")]
        {
            assert!(terms(text, size).unwrap_err().contains(word), "{text}");
        }
        assert!(terms("2:3", 4).unwrap_err().contains("more than 3"));
        assert!(terms("1", 1).unwrap_err().contains("-n 2"));
    }
}
