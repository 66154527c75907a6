//! A trait through which other crates hold a group without its types in their signatures.

use super::Group;
use crate::{Element, ReduceOp};
use std::io;

/// Six methods that a library of tensors needs of a group, in types of the standard library alone.
///
/// A crate that works with and without Comity takes an `impl Communicator<f32>` or a `dyn Communicator<f32>`, or has the same trait itself: nothing
/// of its interface names this crate. The error is an [`io::Error`] whose inner error is [`Error`](crate::Error).
///
/// ```
/// use comity::{Communicator, Error, Group};
///
/// /// A tensor library's own type.
/// struct Tensor {
///     data: Vec<f32>,
/// }
///
/// /// One linear layer whose columns are divided among the ranks, in a crate that knows no Comity.
/// struct Linear {
///     columns: Vec<f32>,
///     ranks: Box<dyn Communicator<f32>>,
/// }
///
/// impl Linear {
///     fn forward(&self, x: &Tensor) -> std::io::Result<Tensor> {
///         let mut y = vec![x.data.iter().zip(&self.columns).map(|(a, b)| a * b).sum()];
///         self.ranks.all_sum(&mut y)?;
///         Ok(Tensor { data: y })
///     }
/// }
///
/// # Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> std::io::Result<()> {
/// // On each rank of a group of two:
/// let layer = Linear { columns: vec![1.0, 2.0], ranks: Box::new(group) };
/// assert_eq!(layer.forward(&Tensor { data: vec![3.0, 4.0] })?.data, [22.0]);
/// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
///
/// let alone: &dyn Communicator<f32> = &Group::single();
/// let e = alone.all_gather(&[1.0], &mut [0.0; 2]).unwrap_err();
/// assert!(e.get_ref().is_some_and(|e| e.is::<Error>()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Communicator<T>: Send + Sync {
    /// This rank: from 0 on.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Add up every rank's `x`, which has one length on all; every rank has the sum in `x`.
    ///
    /// # Errors
    /// The errors of [`Group::all_reduce`].
    fn all_sum(&self, x: &mut [T]) -> io::Result<()>;

    /// Join every rank's `mine`, by rank, in `all`, which is as long as all of them.
    ///
    /// # Errors
    /// The errors of [`Group::all_gather`].
    fn all_gather(&self, mine: &[T], all: &mut [T]) -> io::Result<()>;

    /// Add up every rank's `all`, and keep this rank's part, by rank, in `mine`.
    ///
    /// # Errors
    /// The errors of [`Group::reduce_scatter`].
    fn sum_scatter(&self, all: &[T], mine: &mut [T]) -> io::Result<()>;

    /// Copy the root's `x` to every rank.
    ///
    /// # Errors
    /// The errors of [`Group::broadcast`].
    fn broadcast(&self, x: &mut [T], root: usize) -> io::Result<()>;
}

impl<T: Element> Communicator<T> for Group {
    fn rank(&self) -> usize {
        Self::rank(self)
    }

    fn size(&self) -> usize {
        Self::size(self)
    }

    fn all_sum(&self, x: &mut [T]) -> io::Result<()> {
        self.all_reduce(x, ReduceOp::Sum).map_err(io::Error::other)
    }

    fn all_gather(&self, mine: &[T], all: &mut [T]) -> io::Result<()> {
        Self::all_gather(self, mine, all).map_err(io::Error::other)
    }

    fn sum_scatter(&self, all: &[T], mine: &mut [T]) -> io::Result<()> {
        self.reduce_scatter(all, mine, ReduceOp::Sum).map_err(io::Error::other)
    }

    fn broadcast(&self, x: &mut [T], root: usize) -> io::Result<()> {
        Self::broadcast(self, x, root).map_err(io::Error::other)
    }
}
