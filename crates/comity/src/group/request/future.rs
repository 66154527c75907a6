//! Requests in asynchronous programs.

use super::Request;
use crate::{Error, ErrorKind, Result, sync::lock};
use std::{
    panic::resume_unwind,
    pin::Pin,
    task::{Context, Poll},
};

/// A request can be awaited, in any runtime. The group's thread wakes the task when the work has ended; no thread of the runtime
/// waits. The work runs whether it is polled or not: dropping the future lets it finish unobserved, as [`detach`](Request::detach)
/// does, since other ranks count on it.
///
/// ```
/// use comity::{Group, ReduceOp};
/// use std::{
///     future::Future,
///     pin::pin,
///     sync::Arc,
///     task::{Context, Poll, Wake},
///     thread::{self, Thread},
/// };
///
/// /// The smallest runtime: one task, whose thread sleeps until it is woken.
/// fn block_on<F: Future>(task: F) -> F::Output {
///     struct Unpark(Thread);
///     impl Wake for Unpark {
///         fn wake(self: Arc<Self>) {
///             self.0.unpark();
///         }
///     }
///     let waker = Arc::new(Unpark(thread::current())).into();
///     let mut task = pin!(task);
///     loop {
///         match task.as_mut().poll(&mut Context::from_waker(&waker)) {
///             Poll::Ready(out) => return out,
///             Poll::Pending => thread::park(),
///         }
///     }
/// }
///
/// let g = Group::single();
/// let sum = block_on(async {
///     let mut x = vec![1f32; 1024];
///     let sum = g.spawn(move |g| {
///         g.all_reduce(&mut x, ReduceOp::Sum)?;
///         Ok(x)
///     });
///     // ... other tasks run meanwhile ...
///     sum.await
/// })?;
/// assert_eq!(sum[0], 1.0);
/// # Ok::<(), comity::Error>(())
/// ```
///
/// It ends as [`wait`](Request::wait) does: with the work's result, with [`ErrorKind::Order`] in background work of the same group when
/// this request comes later, or with the work's panic. Whoever polls it after its end waits for ever.
impl<R, E: From<Error>> Future for Request<R, E> {
    type Output = Result<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut out = lock(&self.slot.out);
        if let Some(out) = out.take() {
            return Poll::Ready(out.unwrap_or_else(|p| resume_unwind(p)));
        }
        if self.would_wait_for_itself() {
            return Poll::Ready(Err(Error::from(ErrorKind::Order).into()));
        }
        // While the result's lock is held: the work's end comes before, and was seen, or after, and wakes this task.
        let mut waker = lock(&self.slot.waker);
        match &mut *waker {
            Some(w) => w.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Group;
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        task::{Wake, Waker},
        thread,
        time::{Duration, Instant},
    };

    const LONG: Duration = Duration::from_secs(20);

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll<R>(request: &mut Request<R>, waker: &Arc<Count>) -> Poll<Result<R>> {
        Pin::new(request).poll(&mut Context::from_waker(&Waker::from(Arc::clone(waker))))
    }

    fn until_woken(waker: &Count) {
        let until = Instant::now() + LONG;
        while waker.0.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < until, "nobody woke the task");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_last_task_that_polled_is_woken_once() {
        let g = Group::single();
        let (go, wait) = mpsc::channel();
        let mut request = g.spawn(move |_| Ok(wait.recv_timeout(LONG).is_ok()));
        let first = Arc::default();
        let last = Arc::default();
        assert!(poll(&mut request, &first).is_pending() && poll(&mut request, &last).is_pending());
        go.send(()).unwrap();
        until_woken(&last);
        assert!(matches!(poll(&mut request, &last), Poll::Ready(Ok(true))));
        assert_eq!((first.0.load(Ordering::SeqCst), last.0.load(Ordering::SeqCst)), (0, 1));
    }

    #[test]
    fn a_future_that_is_dropped_lets_the_work_finish() {
        let g = Group::single();
        let (go, wait) = mpsc::channel::<()>();
        let (done, end) = mpsc::channel();
        let mut request = g.spawn(move |_| {
            let _ = wait.recv_timeout(LONG);
            let _ = done.send(());
            Ok(())
        });
        assert!(poll(&mut request, &Arc::default()).is_pending());
        drop(request);
        go.send(()).unwrap();
        end.recv_timeout(LONG).unwrap();
        g.barrier().unwrap();
    }

    #[test]
    fn work_that_awaits_what_comes_after_it_is_told() {
        let g = Group::single();
        let (give, take) = mpsc::channel::<Request<()>>();
        let first = g.spawn(move |_| {
            let mut later = take.recv_timeout(LONG).unwrap();
            let out = poll(&mut later, &Arc::default());
            Ok(matches!(out, Poll::Ready(Err(e)) if *e.kind() == ErrorKind::Order))
        });
        give.send(g.spawn(|_| Ok(()))).unwrap();
        assert!(first.wait().unwrap());
    }
}
