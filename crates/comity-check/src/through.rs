//! The calls of a check: on host memory as they are, or by way of a device's memory and back.

use comity::{
    Element, Group, ReduceOp, Result,
    tools::cuda::{Buffer, Cuda},
};
use std::ops::Deref;

/// A group whose calls on slices go through device memory where a device is given.
#[derive(Clone)]
pub(super) struct Through<'a> {
    group: &'a Group,
    device: Option<Cuda>,
}

impl<'a> Through<'a> {
    pub(super) fn new(group: &'a Group, device: Option<Cuda>) -> Self {
        Self { group, device }
    }
}

impl Deref for Through<'_> {
    type Target = Group;

    fn deref(&self) -> &Group {
        self.group
    }
}

/// Copies a slice to the device.
fn up<T: Element>(cuda: &Cuda, data: &[T]) -> Result<Buffer> {
    let mut buffer = cuda.buffer(size_of_val(data))?;
    buffer.write(data)?;
    Ok(buffer)
}

/// Calls of one buffer, in place.
macro_rules! in_place {
    ($($name:ident($($arg:ident: $t:ty),*);)*) => {$(
        pub(super) fn $name<T: Element>(&self, buf: &mut [T], $($arg: $t),*) -> Result<()> {
            let Some(cuda) = &self.device else { return self.group.$name(buf, $($arg),*) };
            let mut there = up(cuda, buf)?;
            self.group.$name(there.view_mut(T::DTYPE, buf.len()), $($arg),*)?;
            there.read(buf)
        }
    )*};
}

/// Calls of a source and a destination.
macro_rules! two {
    ($($name:ident($($before:ident: $b:ty),*; $($after:ident: $a:ty),*);)*) => {$(
        pub(super) fn $name<T: Element>(&self, src: &[T], $($before: $b,)* dst: &mut [T], $($after: $a),*) -> Result<()> {
            let Some(cuda) = &self.device else { return self.group.$name(src, $($before,)* dst, $($after),*) };
            let from = up(cuda, src)?;
            let mut to = up(cuda, dst)?;
            let n = src.len();
            let m = dst.len();
            self.group.$name(from.view(T::DTYPE, n), $($before,)* to.view_mut(T::DTYPE, m), $($after),*)?;
            to.read(dst)
        }
    )*};
}

impl Through<'_> {
    in_place! {
        all_reduce(op: ReduceOp);
        reduce(op: ReduceOp, root: usize);
        broadcast(root: usize);
        all_gather_in_place();
        reduce_scatter_in_place(op: ReduceOp);
        all_to_all_in_place();
        recv(from: usize, tag: u32);
    }

    two! {
        all_reduce_into(; op: ReduceOp);
        all_gather(;);
        all_gather_v(; counts: &[usize]);
        reduce_scatter(; op: ReduceOp);
        reduce_scatter_v(; counts: &[usize], op: ReduceOp);
        gather(; root: usize);
        scatter(; root: usize);
        all_to_all(;);
        all_to_all_v(send_counts: &[usize]; recv_counts: &[usize]);
        sendrecv(to: usize; from: usize, tag: u32);
    }

    pub(super) fn send<T: Element>(&self, src: &[T], to: usize, tag: u32) -> Result<()> {
        let Some(cuda) = &self.device else { return self.group.send(src, to, tag) };
        let from = up(cuda, src)?;
        self.group.send(from.view(T::DTYPE, src.len()), to, tag)?;
        // The memory is given back here.
        cuda.finish()
    }
}
