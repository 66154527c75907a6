//! Ranks as a grid with named axes, such as data x pipeline x tensor.

use crate::{Result, ShardingCause, ShardingError};
use comity::Group;

/// A grid of ranks. Along each axis, the ranks that differ only there are a group.
///
/// ```text
/// [("data", 2), ("tensor", 3)]        tensor 0   1   2
///                              data 0       r0  r1  r2
///                              data 1       r3  r4  r5
/// ```
///
/// ```
/// use comity_candle::DeviceMesh;
///
/// # comity::Group::local(6)?.into_iter().map(|group| std::thread::spawn(move || -> comity_candle::Result<()> {
/// // On each rank of a group of six:
/// let mesh = DeviceMesh::new(&group, &[("data", 2), ("tensor", 3)])?;
/// let tensor = mesh.group("tensor")?; // with the two neighbours: for sharded layers
/// let data = mesh.group("data")?; // with the rank that has the same part of each: for averages
/// assert_eq!((tensor.size(), data.size()), (3, 2));
/// assert_eq!((data.rank(), tensor.rank()), (group.rank() / 3, group.rank() % 3));
/// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeviceMesh {
    ranks: usize,
    axes: Vec<(String, Group)>,
}

impl DeviceMesh {
    /// A grid of all ranks of a group; those next to each other along the last axis are neighbours by rank, so that it is the one for the
    /// most traffic. Every rank calls this with the same axes.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when the axes do not multiply to the size of the group;
    /// [`Error::Group`](crate::Error::Group) as [`Group::split`].
    pub fn new(group: &Group, axes: &[(&str, usize)]) -> Result<Self> {
        let sizes: Vec<usize> = axes.iter().map(|(_, size)| *size).collect();
        if sizes.iter().product::<usize>() != group.size() {
            let cause = ShardingCause::Ranks { made_for: sizes.iter().product() };
            let axes: Vec<String> = axes.iter().map(|(name, size)| format!("{name} {size}")).collect();
            let mesh = format!("mesh of {}", axes.join(" x "));
            return Err(ShardingError::new("", &mesh, group.size(), cause).into());
        }
        let mut made = Vec::new();
        for (i, (name, size)) in axes.iter().enumerate() {
            // Ranks with the same coordinates along all other axes.
            let step: usize = sizes[i + 1..].iter().product();
            let at = group.rank() / step % size;
            let color = (group.rank() - at * step) as i32;
            made.push((name.to_string(), group.split(Some(color), at as i32)?.unwrap_or_else(Group::single)));
        }
        Ok(Self { ranks: group.size(), axes: made })
    }

    /// The group along an axis; this rank's place along it is its rank there.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) with the names of the axes when there is none of this name.
    pub fn group(&self, axis: &str) -> Result<&Group> {
        self.axes.iter().find(|(name, _)| name == axis).map(|(_, group)| group).ok_or_else(|| {
            let similar = self.axes.iter().map(|(name, _)| name.clone()).collect();
            ShardingError::new(axis, "axis", self.ranks, ShardingCause::Missing { similar }).into()
        })
    }
}
