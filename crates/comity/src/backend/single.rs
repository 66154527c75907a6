//! A group of one: every call copies or does nothing.

use super::{Backend, Bufs, Call, NativeBackend, SubgroupFactory};
use crate::{Result, status::World, view};
use std::{sync::Arc, time::Duration};

/// The backend of a group of one rank in host memory.
#[derive(Debug)]
pub(crate) struct Single;

impl Backend for Single {
    fn run(&mut self, call: Call<'_>, _: Duration) -> Result<()> {
        if let Bufs::Both(src, dst) = call.bufs {
            view::copy(src, dst);
        }
        Ok(())
    }
}

/// The backend of the last rank that is left of a job, which others may join.
#[derive(Debug)]
pub(crate) struct Lone {
    world: Arc<dyn World>,
    group_id: u64,
}

impl Lone {
    pub(crate) fn new(world: Arc<dyn World>, group_id: u64) -> Self {
        Self { world, group_id }
    }
}

impl Backend for Lone {
    fn run(&mut self, call: Call<'_>, limit: Duration) -> Result<()> {
        Single.run(call, limit)
    }

    fn subgroup_factory(&self) -> Option<SubgroupFactory> {
        let world = Arc::downgrade(&self.world);
        let ranks = [self.world.rank()].into();
        Some(SubgroupFactory { world, ranks, group_id: self.group_id, make: Box::new(NativeBackend::make) })
    }
}
