//! A stream: a thread that takes work in the order it was given.

use crate::{Table, lock};
use std::{
    sync::{Mutex, mpsc},
    thread,
};

type Work = Box<dyn FnOnce() + Send>;

#[derive(Clone, Debug)]
pub(crate) struct Stream(mpsc::Sender<Work>);

static STREAMS: Mutex<Table<Stream>> = Mutex::new(Table::new());

/// A new one's number.
pub(crate) fn create() -> usize {
    let (stream, given) = mpsc::channel::<Work>();
    thread::spawn(move || given.into_iter().for_each(|work| work()));
    lock(&STREAMS).add(Stream(stream))
}

/// Ends when its work is done. Whether there was one.
pub(crate) fn destroy(id: usize) -> bool {
    lock(&STREAMS).rows.remove(&id).is_some()
}

pub(crate) fn find(id: usize) -> Option<Stream> {
    lock(&STREAMS).rows.get(&id).cloned()
}

/// Wait for all streams, as freeing memory does.
pub(crate) fn finish_all() {
    let all: Vec<_> = lock(&STREAMS).rows.values().cloned().collect();
    for stream in all {
        let (done, past) = mpsc::channel::<()>();
        stream.give(move || drop(done));
        let _ = past.recv();
    }
}

impl Stream {
    pub(crate) fn give(&self, work: impl FnOnce() + Send + 'static) {
        // Its thread takes work for as long as there is somebody who can give some.
        let _ = self.0.send(Box::new(work));
    }
}
