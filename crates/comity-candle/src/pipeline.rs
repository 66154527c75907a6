//! Pipelines: each rank has some of the layers, and micro-batches go through them one behind the other.
//!
//! ```text
//! 1F1B, 3 stages, 4 micro-batches; numbers go forward, letters back (a is the gradient of 0)
//! stage 0  0 1 2 . . a 3 b . c . d
//! stage 1    0 1 . a 2 b 3 c . d
//! stage 2      0 a 1 b 2 c 3 d
//! ```

use crate::{Error, Result, ShardingCause, ShardingError, collective::in_calls};
use candle_core::{DType, Device, Tensor, Var, backprop::GradStore};
use comity::{Group, Request};
use std::{collections::VecDeque, ops::Range};

/// Order of forward and backward passes.
///
/// ```
/// assert_eq!(comity_candle::Passes::default(), comity_candle::Passes::OneForwardOneBackward);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Passes {
    /// All forward passes, then all backward passes (GPipe): a stage holds the results of every micro-batch.
    AllForwardFirst,
    /// A backward pass as soon as there is one (1F1B): a stage holds the results of as many micro-batches as there are stages from it on.
    #[default]
    OneForwardOneBackward,
}

/// A model in stages, one on each rank of a group.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use comity_candle::{Passes, Pipeline};
///
/// # comity::Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity_candle::Result<()> {
/// // On each rank of a group of two: rank 0 multiplies by its w, rank 1 by its own, and has the loss.
/// let w = Var::new(&[2f32 + group.rank() as f32], &Device::Cpu)?;
/// let mut pipeline = Pipeline::new(&group, Passes::default())?;
/// let micro_batches = [1f32, 2.0, 3.0];
/// let (loss, gradients) = pipeline.run(&micro_batches, |input, batch| {
///     let x = match input {
///         Some(x) => x, // what the stage before made of this micro-batch
///         None => Tensor::new(&[*batch], &Device::Cpu)?,
///     };
///     Ok((x * w.as_tensor())?.sum_all()?.reshape(if group.rank() == 0 { vec![1] } else { vec![] })?)
/// })?;
/// assert_eq!(loss, 12.0); // the mean of 2 * 3 * (1, 2, 3), on both
/// assert_eq!(gradients.get(&w).unwrap().to_vec1::<f32>()?, [[6.0], [4.0]][group.rank()]);
/// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Debug)]
pub struct Pipeline {
    /// For results on their way forward.
    ahead: Group,
    /// For gradients on their way back: a rank may send both ways at once.
    back: Group,
    passes: Passes,
}

/// A micro-batch between its passes.
struct Held {
    input: Option<Var>,
    output: Tensor,
}

impl Pipeline {
    /// A pipeline over the ranks of a group, in their order. Every rank calls this.
    ///
    /// # Errors
    /// [`Error::Group`] as [`Group::split`].
    pub fn new(group: &Group, passes: Passes) -> Result<Self> {
        let back = group.split(Some(0), group.rank() as i32)?.unwrap_or_else(Group::single);
        Ok(Self { ahead: group.clone(), back, passes })
    }

    /// Mean loss of the micro-batches, the same on every rank, and the gradients of this rank's variables.
    ///
    /// `stage` computes this rank's layers: from the result of the stage before, which the first has not, and from the micro-batch. The last
    /// stage returns the loss.
    ///
    /// # Errors
    /// Errors of `stage`; [`Error::Group`], also when a rank of the pipeline fails.
    pub fn run<B>(
        &mut self,
        micro_batches: &[B],
        mut stage: impl FnMut(Option<Tensor>, &B) -> Result<Tensor>,
    ) -> Result<(f64, GradStore)> {
        let count = micro_batches.len();
        if count == 0 {
            return Err(candle_core::Error::Msg("there is no micro-batch to learn from".into()).into());
        }
        let rank = self.ahead.rank();
        let stages = self.ahead.size();
        let first = match self.passes {
            Passes::AllForwardFirst => count,
            Passes::OneForwardOneBackward => (stages - rank).min(count),
        };
        let mut held = VecDeque::new();
        let mut sent = Vec::new();
        let mut loss = [0f64];
        let mut sum = None;
        for i in 0..count + first {
            if i >= first {
                self.backward(&mut held, &mut sum, &mut sent)?;
            }
            if let Some(batch) = micro_batches.get(i) {
                let input =
                    if rank > 0 { Some(Var::from_tensor(&receive(&self.ahead, rank - 1)?)?) } else { None };
                let mut output = stage(input.as_ref().map(|v| v.as_tensor().clone()), batch)?;
                if rank + 1 < stages {
                    sent.push(transmit(&self.ahead, &output, rank + 1));
                } else {
                    output = (output / count as f64)?;
                    loss[0] += output.to_dtype(DType::F64)?.to_scalar::<f64>()?;
                }
                held.push_back(Held { input, output });
            }
        }
        for request in sent {
            // WAIT: a request, whose call has a deadline
            in_calls(|| request.wait())?;
        }
        in_calls(|| self.ahead.broadcast(&mut loss, stages - 1))?;
        let gradients = sum.ok_or(candle_core::Error::UnwrapNone)?;
        Ok((loss[0], gradients))
    }

    /// The backward pass of the micro-batch that waits longest.
    fn backward(
        &self,
        held: &mut VecDeque<Held>,
        sum: &mut Option<GradStore>,
        sent: &mut Vec<Request<(), Error>>,
    ) -> Result<()> {
        let rank = self.back.rank();
        let stages = self.back.size();
        let Some(Held { input, output }) = held.pop_front() else { return Ok(()) };
        let loss =
            if rank + 1 < stages { (&output * receive(&self.back, rank + 1)?)?.sum_all()? } else { output };
        let mut gradients = loss.backward()?;
        if let Some(input) = input {
            let gradient = gradients.remove(&input).map_or_else(|| input.zeros_like(), Ok)?;
            sent.push(transmit(&self.back, &gradient, rank - 1));
        }
        // A gradient as candle made it keeps all that the forward pass computed.
        let ids: Vec<_> = gradients.get_ids().copied().collect();
        for id in ids {
            if let Some(g) = gradients.get_id(id).map(Tensor::detach) {
                gradients.insert_id(id, g);
            }
        }
        match sum {
            Some(sum) => sum.extend(gradients)?,
            None => *sum = Some(gradients),
        }
        Ok(())
    }
}

/// A tensor's type, its number of axes and their lengths.
const DESCRIPTION: usize = 10;
const TAG: u32 = 0;

/// Begin to send a tensor and its description.
fn transmit(group: &Group, x: &Tensor, to: usize) -> Request<(), Error> {
    let x = x.detach();
    group.spawn_as(move |g| {
        let mut description = [0u64; DESCRIPTION];
        // Comity's number of the type, which both have under one name.
        description[0] = comity::DType::from_name(x.dtype().as_str()).map_or(u64::MAX, |t| t as u64);
        description[1] = x.rank() as u64;
        for (place, dim) in description[2..].iter_mut().zip(x.dims()) {
            *place = *dim as u64;
        }
        g.send(&description, to, TAG)?;
        crate::send(g, &x, to, TAG).map(drop)
    })
}

fn receive(group: &Group, from: usize) -> Result<Tensor> {
    let mut description = [0u64; DESCRIPTION];
    in_calls(|| group.recv(&mut description, from, TAG))?;
    let dtype = comity::DType::ALL.get(description[0] as usize).and_then(|t| t.name().parse().ok());
    let dims = description.get(2..2 + description[1] as usize);
    let (Some(dtype), Some(dims)) = (dtype, dims) else {
        let text =
            format!("stage {from} sent a tensor of more than 8 axes, or of a type that does not travel");
        return Err(candle_core::Error::Msg(text).into());
    };
    let shape: Vec<usize> = dims.iter().map(|d| *d as usize).collect();
    Ok(crate::recv(group, shape, dtype, &Device::Cpu, from, TAG)?.detach())
}

/// Layers of each stage, one behind the other, such that the largest stage is as small as it can be.
///
/// `sizes` are the layers' bytes, or their times.
///
/// ```
/// use comity_candle::divide_layers;
///
/// // An embedding, four blocks and a large last layer.
/// assert_eq!(divide_layers(&[40, 10, 10, 10, 10, 40], 3)?, [0..1, 1..5, 5..6]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Sharding`] when there are fewer layers than stages.
pub fn divide_layers(sizes: &[u64], stages: usize) -> Result<Vec<Range<usize>>> {
    if sizes.len() < stages || stages == 0 {
        let cause = ShardingCause::TooManyRanks { units: sizes.len(), unit: 1 };
        return Err(ShardingError::new("", "layers", stages, cause).into());
    }
    // The smallest limit under which the layers fit into so many stages.
    let mut low = sizes.iter().copied().max().unwrap_or(0);
    let mut high = sizes.iter().sum();
    while low < high {
        let limit = low + (high - low) / 2;
        if cut(sizes, stages, limit).is_some() { high = limit } else { low = limit + 1 }
    }
    cut(sizes, stages, high).ok_or_else(|| candle_core::Error::UnwrapNone.into())
}

/// Layers of each stage, none of which is larger than `limit`, and none without layers.
fn cut(sizes: &[u64], stages: usize, limit: u64) -> Option<Vec<Range<usize>>> {
    let mut made = Vec::new();
    let mut start = 0;
    let mut size = 0;
    for (i, bytes) in sizes.iter().enumerate() {
        let missing = stages - made.len() - 1;
        // A stage ends when it is full, or when each layer left has to be a stage.
        if i > start && (size + bytes > limit || sizes.len() - i == missing) {
            if missing == 0 {
                return None;
            }
            made.push(start..i);
            start = i;
            size = 0;
        }
        size += bytes;
    }
    made.push(start..sizes.len());
    (made.len() == stages).then_some(made)
}
