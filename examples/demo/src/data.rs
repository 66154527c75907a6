//! The samples, and the random numbers that order them.

use super::Result;
use std::path::Path;

/// Pixels of an image, 8x8.
pub const PIXELS: usize = 64;

/// 8x8 images of handwritten digits.
#[derive(Debug)]
pub struct Digits {
    images: Vec<f32>,
    labels: Vec<u8>,
    /// Indices of the samples to learn from.
    pub train: Vec<usize>,
    /// Indices of the samples to test with.
    pub held_out: Vec<usize>,
}

impl Digits {
    /// Read lines of 64 pixels from 0 to 16, then the digit. Every fifth sample is held out.
    ///
    /// # Errors
    /// The file cannot be read, or a line is something else: its number.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .map_err(|e| format!("cannot read {}: {e}; name the samples with --data FILE", file.display()))?;
        let mut images = Vec::new();
        let mut labels = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let values = line.split(',').map(|v| v.trim().parse::<u8>()).collect::<Result<Vec<_>, _>>();
            let Some((&label, pixels)) = values.as_ref().ok().and_then(|v| v.split_last()) else {
                return Err(
                    format!("{}:{}: expected numbers with commas between", file.display(), i + 1).into()
                );
            };
            if pixels.len() != PIXELS || pixels.iter().any(|&p| p > 16) || label > 9 {
                let place = format!("{}:{}", file.display(), i + 1);
                return Err(
                    format!("{place}: expected 64 pixels from 0 to 16, then a digit from 0 to 9").into()
                );
            }
            images.extend(pixels.iter().map(|&p| f32::from(p) / 16.0));
            labels.push(label);
        }
        let n = labels.len();
        if n < 5 {
            return Err(format!("{} holds {n} samples; at least 5 are needed", file.display()).into());
        }
        let (held_out, train) = (0..n).partition(|i| i % 5 == 4);
        Ok(Self { images, labels, train, held_out })
    }

    /// The pixels of these samples, from 0 to 1, a row each, and their digits.
    #[must_use]
    pub fn batch(&self, samples: &[usize]) -> (Vec<f32>, Vec<u8>) {
        let rows = samples.iter().flat_map(|at| &self.images[at * PIXELS..][..PIXELS]);
        (rows.copied().collect(), samples.iter().map(|at| self.label(*at)).collect())
    }

    pub(crate) fn label(&self, sample: usize) -> u8 {
        self.labels[sample]
    }
}

/// SplitMix64: the same numbers on every rank and machine.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence that this seed begins.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from -1 to 1.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn shuffle(&mut self, items: &mut [usize]) {
        for i in (1..items.len()).rev() {
            items.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }
}
