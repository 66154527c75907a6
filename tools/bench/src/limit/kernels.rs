//! Additions in the widest vectors that the processor has, for the compiler that built this knows only what every processor can.
#![allow(unsafe_code, reason = "vector instructions")]

/// Adds `from` to `to`, element by element.
pub(super) fn add(to: &mut [f32], from: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the line above asked whether the processor has these instructions.
        return unsafe { wide(to, from) };
    }
    plain(to, from);
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::missing_safety_doc, reason = "it is not unsafe, but needs a feature")]
#[target_feature(enable = "avx2")]
fn wide(to: &mut [f32], from: &[f32]) {
    plain(to, from);
}

#[inline(always)]
fn plain(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_adds() {
        let mut to = [1.0; 19];
        super::add(&mut to, &[2.0; 19]);
        assert_eq!(to, [3.0; 19]);
    }
}
