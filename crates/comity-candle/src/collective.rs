//! Calls of the group on candle's storages, with the way of their gradients.

use crate::Result;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Shape, Tensor, WithDType};
use comity::{Element, Group, ReduceOp, View, ViewMut};
use std::{
    cell::Cell,
    time::{Duration, Instant},
};

thread_local! {
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Time that this thread has spent in calls of this crate to other ranks, those inside forward and backward passes included. Calls that travel while it
/// computes count only as far as it waits for them.
///
/// ```
/// use candle_core::{Device, Tensor};
///
/// let group = comity::Group::single();
/// let before = comity_candle::time_in_calls();
/// comity_candle::all_sum(&group, &Tensor::new(1f32, &Device::Cpu)?)?;
/// println!("{:?} in calls", comity_candle::time_in_calls() - before);
/// # Ok::<(), comity_candle::Error>(())
/// ```
pub fn time_in_calls() -> Duration {
    WAITED.get()
}

/// Device for this rank's tensors: the group's CUDA device, where its calls go through NCCL and the feature `cuda` is on; else the CPU.
///
/// Ask once: candle takes the devices of two calls for different ones.
///
/// ```
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let device = comity_candle::device(&group)?;
/// # assert!(device.is_cpu());
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// Candle's, when it cannot use the CUDA device.
pub fn device(group: &Group) -> Result<Device> {
    match group.device().filter(|_| cfg!(feature = "cuda")) {
        Some(ordinal) => Ok(Device::new_cuda(ordinal as usize)?),
        None => Ok(Device::Cpu),
    }
}

/// Returns true if calls of this group take tensors on this device, and not in host memory, as they are.
pub(crate) fn takes_on_device(group: &Group, device: &Device) -> bool {
    #[cfg(feature = "cuda")]
    return crate::cuda::takes(group, device);
    #[cfg(not(feature = "cuda"))]
    {
        _ = (group, device);
        false
    }
}

/// The result of `f`, whose time counts as time in calls.
pub(crate) fn in_calls<T>(f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let out = f();
    WAITED.set(WAITED.get() + start.elapsed());
    out
}

/// Add up every rank's elements, in their place.
pub(crate) fn sum_in_place(group: &Group, storage: &mut CpuStorage) -> Result<()> {
    macro_rules! by_type {
        ($($variant:ident),*) => {
            match storage {
                $(CpuStorage::$variant(x) => in_calls(|| group.all_reduce(x, ReduceOp::Sum))?,)*
                other => {
                    let dtype = candle_core::backend::BackendStorage::dtype(other);
                    return Err(candle_core::Error::Msg(format!("a sum cannot send elements of {dtype:?}")).into());
                }
            }
        };
    }
    by_type!(BF16, F16, F32, F64);
    Ok(())
}

/// A call of a group on a tensor's elements.
#[derive(Clone, Debug)]
pub(crate) enum CallKind {
    /// A copy; nothing travels.
    None,
    /// The same result on every rank.
    Reduce(ReduceOp),
    /// All rows; rank `r` has so many.
    Gather(Vec<usize>),
    /// Rank `r` keeps so many rows of the sum.
    Scatter(Vec<usize>),
    /// An equal part to each rank.
    AllToAll,
    /// The root's elements.
    Broadcast(usize),
    /// To another rank; a zero is left.
    Send { to: usize, tag: u32 },
    /// From another rank.
    Receive { from: usize, tag: u32, shape: Shape },
}

impl CallKind {
    /// Returns true if the result begins as a copy of the input.
    pub(crate) fn begins_as_copy(&self) -> bool {
        matches!(self, Self::None | Self::Broadcast(_))
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::None => "sum_gradients",
            Self::Reduce(ReduceOp::Max) => "all_max",
            Self::Reduce(ReduceOp::Min) => "all_min",
            Self::Reduce(_) => "all_sum",
            Self::Gather(_) => "all_gather",
            Self::Scatter(_) => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Broadcast(_) => "broadcast",
            Self::Send { .. } => "send",
            Self::Receive { .. } => "recv",
        }
    }
}

/// Way of a gradient.
#[derive(Clone, Debug)]
pub(crate) enum Back {
    /// Nowhere: nobody asks for it.
    Nowhere,
    /// Unchanged.
    Same,
    /// The sum of all ranks' gradients.
    Sum,
    /// To the ranks that have the extreme.
    Extreme,
    /// Rows of it: the first, and how many.
    Rows(usize, usize),
    /// Another call.
    Call(CallKind),
    /// To this rank alone.
    Root(usize),
    /// From the rank that received the tensor, which has this shape.
    Receive { from: usize, tag: u32, shape: Shape },
    /// To the rank that sent the tensor.
    Send { to: usize, tag: u32 },
}

#[derive(Clone, Debug)]
pub(crate) struct TensorCall {
    pub(crate) group: Group,
    pub(crate) kind: CallKind,
    pub(crate) back: Back,
}

impl TensorCall {
    pub(crate) fn new(group: &Group, kind: CallKind) -> Self {
        Self { group: group.clone(), kind, back: Back::Nowhere }
    }

    /// The result for `x`, without a gradient.
    pub(crate) fn apply(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = self.on_its_device(x)?.contiguous()?.apply_op1_no_bwd(self)?;
        y.to_device(x.device())
    }

    /// `x` where the group takes it: on its CUDA device, if the group's calls go through NCCL there; on a Metal device; else in host memory.
    pub(crate) fn on_its_device(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        if takes_on_device(&self.group, x.device()) {
            return Ok(x.clone());
        }
        #[cfg(feature = "metal")]
        if x.device().is_metal() {
            return Ok(x.clone());
        }
        x.to_device(&Device::Cpu)
    }

    /// The result for a contiguous storage, and its shape.
    pub(crate) fn run(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("{} needs a contiguous tensor", self.kind.name());
        };
        let dims = layout.dims();
        let shape = self.shape(layout.shape());
        let result = shape.elem_count();
        macro_rules! by_type {
            ($($variant:ident),*) => {
                match storage {
                    $(CpuStorage::$variant(x) => CpuStorage::$variant(self.timed(|| self.on_host(&x[start..end], dims, result))?),)*
                    other => candle_core::bail!("{} cannot send elements of {:?}", self.kind.name(), candle_core::backend::BackendStorage::dtype(other)),
                }
            };
        }
        Ok((by_type!(U8, U32, I16, I32, I64, BF16, F16, F32, F64), shape))
    }

    /// The result of `f`, whose time counts as time in calls where anything travels.
    pub(crate) fn timed<T>(&self, f: impl FnOnce() -> T) -> T {
        if matches!(self.kind, CallKind::None) { f() } else { in_calls(f) }
    }

    /// Shape of the result for a tensor of this one.
    pub(crate) fn shape(&self, of: &Shape) -> Shape {
        let rows = |n: usize| {
            let mut dims = of.dims().to_vec();
            if let Some(first) = dims.first_mut() {
                *first = n;
            }
            Shape::from(dims)
        };
        match &self.kind {
            CallKind::Gather(sizes) => rows(sizes.iter().sum()),
            CallKind::Scatter(sizes) => rows(sizes.get(self.group.rank()).copied().unwrap_or_default()),
            CallKind::Send { .. } => Shape::from(()),
            CallKind::Receive { shape, .. } => shape.clone(),
            _ => of.clone(),
        }
    }

    /// The call on elements, wherever they lie. Where it has a [`begins_as_copy`](CallKind::begins_as_copy), `dst` holds one.
    pub(crate) fn transfer(&self, src: View<'_>, dst: ViewMut<'_>, dims: &[usize]) -> Result<()> {
        let group = &self.group;
        let width: usize = dims.iter().skip(1).product();
        let elements = |sizes: &[usize]| sizes.iter().map(|rows| rows * width).collect::<Vec<_>>();
        match &self.kind {
            CallKind::None => {}
            CallKind::Reduce(op) => group.all_reduce_into(src, dst, *op)?,
            CallKind::Gather(sizes) => group.all_gather_v(src, dst, &elements(sizes))?,
            CallKind::Scatter(sizes) => {
                group.reduce_scatter_v(src, dst, &elements(sizes), ReduceOp::Sum)?;
            }
            CallKind::AllToAll => group.all_to_all(src, dst)?,
            CallKind::Broadcast(root) => group.broadcast(dst, *root)?,
            CallKind::Send { to, tag } => group.send(src, *to, *tag)?,
            CallKind::Receive { from, tag, .. } => group.recv(dst, *from, *tag)?,
        }
        Ok(())
    }

    /// The result for elements in host memory, of which there are so many.
    fn on_host<T: WithDType + Element>(&self, x: &[T], dims: &[usize], result: usize) -> Result<Vec<T>> {
        let mut y = if self.kind.begins_as_copy() { x.to_vec() } else { vec![T::zero(); result] };
        self.transfer(x.into(), (&mut y).into(), dims)?;
        Ok(y)
    }
}

impl CustomOp1 for TensorCall {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        self.run(storage, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        crate::cuda::run(self, storage, layout)
    }

    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        storage: &MetalStorage,
        layout: &Layout,
    ) -> candle_core::Result<(MetalStorage, Shape)> {
        crate::metal::run(self, storage, layout)
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let group = &self.group;
        let over = |kind: CallKind| Self::new(group, kind).apply(gradient);
        Ok(Some(match &self.back {
            Back::Nowhere => return Ok(None),
            Back::Same => gradient.clone(),
            Back::Sum => over(CallKind::Reduce(ReduceOp::Sum))?,
            Back::Extreme => {
                let mine = x.eq(y)?.to_dtype(DType::F32)?;
                let owners = Self::new(group, CallKind::Reduce(ReduceOp::Sum)).apply(&mine)?;
                gradient.mul(&(mine / owners)?.to_dtype(gradient.dtype())?)?
            }
            Back::Rows(start, rows) => gradient.narrow(0, *start, *rows)?,
            Back::Call(kind) => over(kind.clone())?,
            Back::Root(root) if *root == group.rank() => gradient.clone(),
            Back::Root(_) => x.zeros_like()?,
            Back::Receive { from, tag, shape } => {
                let kind = CallKind::Receive { from: *from, tag: *tag, shape: shape.clone() };
                Self::new(group, kind).apply(&Tensor::zeros(1, x.dtype(), x.device())?)?
            }
            Back::Send { to, tag } => {
                over(CallKind::Send { to: *to, tag: *tag })?;
                // The variable behind a received tensor is there only so that its gradient is computed.
                return Ok(None);
            }
        }))
    }
}
