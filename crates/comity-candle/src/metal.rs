//! Calls of the group on candle's Metal storages: memory that the GPU and the processor share, and no copy to a tensor on the CPU.
//!
//! Candle keeps results in memory of the GPU alone, so the input is copied by the GPU. The result is where the processor wrote it.
#![allow(unsafe_code, reason = "device memory of candle's tensors")]

use crate::{
    Result,
    collective::{CallKind, TensorCall},
};
use candle_core::{Layout, MetalStorage, Shape, backend::BackendStorage};
use comity::{Place, View, ViewMut};

/// The result for a contiguous storage, and its shape.
pub(crate) fn run(
    call: &TensorCall,
    storage: &MetalStorage,
    layout: &Layout,
) -> candle_core::Result<(MetalStorage, Shape)> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("{} needs a contiguous tensor", call.kind.name());
    };
    let dtype = storage.dtype();
    let Some(element) = comity::DType::from_name(dtype.as_str()) else {
        candle_core::bail!("{} cannot send elements of {dtype:?}", call.kind.name());
    };
    let device = storage.device();
    let shape = call.shape(layout.shape());
    let size = dtype.size_in_bytes();
    let count = end - start;
    let src = device.allocate_buffer((count * size).max(1))?;
    device.blit_command_encoder()?.copy_from_buffer(storage.buffer(), start * size, &src, 0, count * size);
    // Before the processor reads what the GPU has written, and writes what it may have read.
    device.flush_and_wait_current()?;
    let result = shape.elem_count();
    let dst = device.allocate_buffer((result * size).max(1))?;
    // SAFETY: shared memory of this call's own, as long as was asked for; the GPU is done with it.
    let from = unsafe { View::from_raw(src.contents(), count, element, Place::Host) };
    if call.kind.begins_as_copy() {
        // SAFETY: as above; two buffers, the shorter of which has so many bytes.
        unsafe { dst.contents().copy_from_nonoverlapping(src.contents(), count.min(result) * size) };
    }
    if matches!(call.kind, CallKind::Send { .. }) {
        // SAFETY: as above.
        unsafe { dst.contents().write_bytes(0, result * size) };
    }
    // SAFETY: as above; this call alone has it.
    let to = unsafe { ViewMut::from_raw(dst.contents(), result, element, Place::Host) };
    call.timed(|| -> Result<()> { call.transfer(from, to, layout.dims()) })?;
    Ok((MetalStorage::new(dst, device.clone(), result, dtype), shape))
}
