//! Training with [candle](candle_core) across ranks.
//!
//! Data parallelism is one call between `backward` and the optimiser's step: [`average_gradients`].
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! use comity::Group;
//! use comity_candle::average_gradients;
//!
//! let group = Group::single(); // under `comity launch`: comity::init()?
//! let w = Var::from_tensor(&Tensor::new(&[1f32, 2.0], &Device::Cpu)?)?;
//! let mine = Tensor::full(group.rank() as f32 + 1.0, 2, &Device::Cpu)?; // this rank's share of the batch
//!
//! let loss = (w.as_tensor() * &mine)?.sum_all()?;
//! let mut gradients = loss.backward()?;
//! average_gradients(&group, [&w], &mut gradients)?;
//! for w in [&w] {
//!     if let Some(gradient) = gradients.get(w) {
//!         w.set(&(w.as_tensor() - (gradient * 0.1)?)?)?;
//!     }
//! }
//! assert_eq!(w.to_vec1::<f32>()?, [0.9, 1.9]);
//! # Ok::<(), comity_candle::Error>(())
//! ```

mod error;
mod gradients;

pub use error::{Error, Result};
pub use gradients::average_gradients;

/// The example of the book is run as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/start/candle.md")]
struct Book;
