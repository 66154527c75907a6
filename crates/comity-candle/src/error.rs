//! What can go wrong: the group or the tensors.

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

/// Why an operation on tensors across ranks failed.
///
/// ```
/// use comity_candle::Error;
///
/// let e = Error::from(comity::Error::Closed);
/// assert!(matches!(&e, Error::Group(e) if e.is_fatal()));
/// ```
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The group failed, or was misused.
    #[error(transparent)]
    Group(#[from] comity::Error),

    /// Candle said no.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),

    /// Gradients of this type cannot be averaged.
    #[error("variable {index} of the list is {dtype}; gradients of f16, bf16, f32 and f64 can be averaged")]
    DType {
        /// Its place in the list of variables.
        index: usize,
        /// Its type, as candle names it.
        dtype: &'static str,
    },
}
