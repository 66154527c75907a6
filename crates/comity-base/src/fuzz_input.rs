//! Source of the choices of fuzz targets' entries.

/// Bytes that steer a target, 0 when they are used up.
pub struct FuzzInput<'a>(pub &'a [u8]);

impl FuzzInput<'_> {
    pub fn roll(&mut self) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first)
    }
}
