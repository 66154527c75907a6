//! Calls of the group on candle's CUDA storages: NCCL moves them on candle's own stream, without a copy to the host.
#![allow(unsafe_code, reason = "device memory of candle's tensors")]

use crate::{
    Result,
    collective::{CallKind, TensorCall, in_calls},
};
use candle_core::{
    CudaDevice, CudaStorage, Device, Layout, Shape,
    backend::BackendStorage,
    cuda_backend::{
        CudaStorageSlice,
        cudarc::driver::{CudaSlice, CudaView, DevicePtr, DevicePtrMut, DeviceRepr, ValidAsZeroBits},
    },
};
use comity::{Element, Group, Place, ReduceOp, View, ViewMut};

/// Returns true if calls of this group take tensors on this device as they are.
pub(crate) fn takes(group: &Group, device: &Device) -> bool {
    match device {
        Device::Cuda(device) => group.device() == Some(ordinal(device)),
        _ => false,
    }
}

fn ordinal(device: &CudaDevice) -> u32 {
    device.cuda_stream().context().ordinal() as u32
}

/// The result for a contiguous storage, and its shape. It is there when the work that is on candle's stream by then is done.
pub(crate) fn run(
    call: &TensorCall,
    storage: &CudaStorage,
    layout: &Layout,
) -> candle_core::Result<(CudaStorage, Shape)> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("{} needs a contiguous tensor", call.kind.name());
    };
    let device = storage.device();
    let shape = call.shape(layout.shape());
    let run = Run { call, device, dims: layout.dims(), result: shape.elem_count() };
    macro_rules! by_type {
        ($($variant:ident),*) => {
            match &storage.slice {
                $(CudaStorageSlice::$variant(x) => {
                    CudaStorageSlice::$variant(call.timed(|| run.on(&x.slice(start..end)))?)
                })*
                _ => candle_core::bail!("{} cannot send elements of {:?}", call.kind.name(), storage.dtype()),
            }
        };
    }
    let slice = by_type!(U8, U32, I16, I32, I64, BF16, F16, F32, F64);
    Ok((CudaStorage { slice, device: device.clone() }, shape))
}

/// Add up every rank's elements, in their place.
pub(crate) fn sum_in_place(group: &Group, storage: &mut CudaStorage) -> Result<()> {
    let stream = storage.device.cuda_stream();
    let place = Place::Cuda { device: ordinal(&storage.device), stream: stream.cu_stream() as usize };
    macro_rules! by_type {
        ($($variant:ident),*) => {
            match &mut storage.slice {
                $(CudaStorageSlice::$variant(x) => {
                    let len = x.len();
                    let (at, written) = x.device_ptr_mut(&stream);
                    // SAFETY: candle's memory, which it frees in the stream's order, so not before the call is done with it; this call alone has it.
                    let all = unsafe { ViewMut::from_raw(at as *mut u8, len, comity::DType::$variant, place) };
                    in_calls(|| group.all_reduce(all, ReduceOp::Sum))?;
                    drop(written);
                })*
                _ => return Err(candle_core::Error::Msg("a sum cannot send such elements".into()).into()),
            }
        };
    }
    by_type!(BF16, F16, F32, F64);
    Ok(())
}

struct Run<'a> {
    call: &'a TensorCall,
    device: &'a CudaDevice,
    dims: &'a [usize],
    /// Elements of the result.
    result: usize,
}

impl Run<'_> {
    fn on<T: Element + DeviceRepr + ValidAsZeroBits>(&self, x: &CudaView<'_, T>) -> Result<CudaSlice<T>> {
        let kind = &self.call.kind;
        let stream = self.device.cuda_stream();
        let place = Place::Cuda { device: ordinal(self.device), stream: stream.cu_stream() as usize };
        let mut y = match kind {
            CallKind::Send { .. } => self.device.alloc_zeros::<T>(1)?,
            // SAFETY: the call or the copy below writes all of it before anything reads it, in the stream's order.
            _ => unsafe { self.device.alloc::<T>(self.result.max(1)) }?,
        };
        if kind.begins_as_copy() {
            self.device.memcpy_dtod(x, &mut y)?;
        }
        let (src, read) = x.device_ptr(&stream);
        let (dst, written) = y.device_ptr_mut(&stream);
        let dtype = <T as Element>::DTYPE;
        // SAFETY: candle's memory, which it frees in the stream's order, so not before the call is done with it.
        let src = unsafe { View::from_raw(src as *const u8, x.len(), dtype, place) };
        // SAFETY: as above; this call alone has it.
        let dst = unsafe { ViewMut::from_raw(dst as *mut u8, self.result, dtype, place) };
        self.call.transfer(src, dst, self.dims)?;
        drop((read, written));
        Ok(y)
    }
}
