//! A text as numbers, one for each letter that is in it.

use super::training::Result;
use candle_core::{Device, Tensor};
use std::{collections::BTreeSet, path::Path};

pub(crate) struct Text {
    letters: Vec<u32>,
    /// The number of different letters.
    pub(crate) vocabulary: usize,
}

impl Text {
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .map_err(|e| format!("cannot read {}: {e}; name a text with --text FILE", file.display()))?;
        let all: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
        let letters = text.chars().map(|c| all.partition_point(|x| *x < c) as u32).collect();
        Ok(Self { letters, vocabulary: all.len() })
    }

    /// The number of places where a sample of so many letters, and the one after it, can begin.
    pub(crate) fn samples(&self, context: usize) -> usize {
        self.letters.len().saturating_sub(context)
    }

    /// Samples that begin at these places, and the letter that follows each of their letters.
    pub(crate) fn batch(
        &self,
        places: &[usize],
        context: usize,
        device: &Device,
    ) -> candle_core::Result<(Tensor, Tensor)> {
        let rows = |shift: usize| {
            let rows: Vec<u32> =
                places.iter().flat_map(|&p| &self.letters[p + shift..p + shift + context]).copied().collect();
            Tensor::from_vec(rows, (places.len(), context), device)
        };
        Ok((rows(0)?, rows(1)?))
    }
}
