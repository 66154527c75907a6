//! A stream: a thread that takes work in the order it was given.

use crate::{Table, lock};
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Condvar, Mutex},
    thread,
};

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    given: u64,
    done: u64,
    over: bool,
}

#[derive(Default)]
pub(crate) struct Stream {
    state: Mutex<State>,
    news: Condvar,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

static STREAMS: Mutex<Table<Arc<Stream>>> = Mutex::new(Table::new());

/// A new one's number.
pub(crate) fn create() -> usize {
    let stream = Arc::new(Stream::default());
    let worker = Arc::clone(&stream);
    thread::spawn(move || worker.work());
    lock(&STREAMS).add(stream)
}

/// Ends when its work is done. Whether there was one.
pub(crate) fn destroy(id: usize) -> bool {
    let Some(stream) = lock(&STREAMS).rows.remove(&id) else { return false };
    lock(&stream.state).over = true;
    stream.news.notify_all();
    true
}

pub(crate) fn find(id: usize) -> Option<Arc<Stream>> {
    lock(&STREAMS).rows.get(&id).cloned()
}

/// Wait for all streams, as freeing memory does.
pub(crate) fn finish_all() {
    let all: Vec<_> = lock(&STREAMS).rows.values().cloned().collect();
    for stream in all {
        let mut state = lock(&stream.state);
        let until = state.given;
        while state.done < until {
            state = stream.news.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

impl Stream {
    pub(crate) fn give(&self, work: Work) {
        let mut state = lock(&self.state);
        state.queue.push_back(work);
        state.given += 1;
        self.news.notify_all();
    }

    /// How much was given so far.
    pub(crate) fn given(&self) -> u64 {
        lock(&self.state).given
    }

    pub(crate) fn is_past(&self, mark: u64) -> bool {
        lock(&self.state).done >= mark
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                work();
                state = lock(&self.state);
                state.done += 1;
                self.news.notify_all();
            } else if state.over {
                return;
            } else {
                state = self.news.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
    }
}
