//! Errors: the group's, candle's, and those of shardings that do not fit.

use crate::ShardingError;
use std::{io, path::PathBuf};

/// Result of an operation on tensors across ranks.
///
/// ```
/// fn sum(x: &candle_core::Tensor) -> comity_candle::Result<f32> {
///     Ok(x.sum_all()?.to_scalar()?)
/// }
/// # assert_eq!(sum(&candle_core::Tensor::new(&[1f32, 2.0], &candle_core::Device::Cpu)?)?, 3.0);
/// # Ok::<(), comity_candle::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why an operation on tensors across ranks failed.
///
/// Layers are candle's modules, and return candle's error. Turned into this one, by `?` in a function that returns
/// [`Result`], it is [`Error::Group`] or [`Error::Sharding`] again where it was one of them.
///
/// ```
/// use comity_candle::Error;
///
/// let e = Error::from(comity::Error::from(comity::ErrorKind::Closed));
/// assert!(matches!(&e, Error::Group(e) if e.is_fatal()));
///
/// let from_a_layer = candle_core::Error::from(e);
/// assert!(matches!(Error::from(from_a_layer), Error::Group(e) if *e.kind() == comity::ErrorKind::Closed));
/// ```
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The group failed, or was misused.
    #[error(transparent)]
    Group(#[from] comity::Error),

    /// Candle refused an operation.
    #[error(transparent)]
    Tensor(candle_core::Error),

    /// A layer or a tensor cannot be spread over the ranks as asked.
    #[error(transparent)]
    Sharding(#[from] Box<ShardingError>),

    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },

    /// Gradients of this type cannot be averaged.
    #[error("variable {index} of the list is {dtype}; gradients of f16, bf16, f32 and f64 can be averaged")]
    DType {
        /// Its place in the list of variables.
        index: usize,
        /// Its type, as candle names it.
        dtype: &'static str,
    },
}

impl From<ShardingError> for Error {
    fn from(e: ShardingError) -> Self {
        Self::Sharding(Box::new(e))
    }
}

impl From<candle_core::Error> for Error {
    fn from(e: candle_core::Error) -> Self {
        use candle_core::Error as Candle;
        match e {
            Candle::Io(e) if e.get_ref().is_some_and(|inner| inner.is::<Self>()) => {
                match e.into_inner().map(|inner| inner.downcast::<Self>()) {
                    Some(Ok(own)) => *own,
                    Some(Err(other)) => Self::Tensor(Candle::Io(io::Error::other(other))),
                    None => Self::Tensor(Candle::UnwrapNone),
                }
            }
            Candle::Context { inner, .. }
            | Candle::WithPath { inner, .. }
            | Candle::WithBacktrace { inner, .. }
                if is_ours(&inner) =>
            {
                Self::from(*inner)
            }
            e => Self::Tensor(e),
        }
    }
}

/// Returns true if an error of this crate is at the bottom of candle's.
fn is_ours(e: &candle_core::Error) -> bool {
    use candle_core::Error as Candle;
    match e {
        Candle::Io(e) => e.get_ref().is_some_and(|inner| inner.is::<Error>()),
        Candle::Context { inner, .. }
        | Candle::WithPath { inner, .. }
        | Candle::WithBacktrace { inner, .. } => is_ours(inner),
        _ => false,
    }
}

/// Candle's error, for modules and gradients; its only variant that hands back the error inside is that of files.
impl From<Error> for candle_core::Error {
    fn from(e: Error) -> Self {
        match e {
            Error::Tensor(e) => e,
            e => Self::Io(io::Error::other(e)),
        }
    }
}
