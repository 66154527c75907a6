//! Tokens of several requests, one after the other, the same on every rank.

use super::{Result, config::Config, model::Model};
use candle_core::{DType, Device, Tensor};
use comity::Group;
use comity_candle::{Sampling, Weights, time_in_calls};
use demo::memory;
use std::{path::Path, time::Instant};

/// The same on every rank.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Stages that the blocks are divided into.
    pub(crate) pipeline: usize,
    /// New tokens of each request, at most.
    pub(crate) tokens: usize,
    pub(crate) temperature: f64,
    pub(crate) top: usize,
    pub(crate) seed: u64,
    pub(crate) dtype: DType,
}

impl Default for Settings {
    fn default() -> Self {
        Self { pipeline: 1, tokens: 32, temperature: 0.0, top: 40, seed: 1, dtype: DType::F32 }
    }
}

pub(crate) struct Outcome {
    /// New tokens of each request.
    pub(crate) tokens: Vec<Vec<u32>>,
    pub(crate) tokens_per_s: f64,
    /// Tokens of the prompts that were read in a second.
    pub(crate) prompt_tokens_per_s: f64,
    pub(crate) share_in_calls: f64,
    pub(crate) bytes_read: u64,
    /// Bytes of memory that this process had before the model, with it, and at most.
    pub(crate) memory: [u64; 3],
}

/// Go on from these tokens; `each` gets every new one as it is chosen: its request and itself.
pub(crate) fn generate(
    group: &Group,
    device: &Device,
    model: &Path,
    prompts: &[Vec<u32>],
    settings: &Settings,
    mut each: impl FnMut(usize, u32),
) -> Result<Outcome> {
    let stages = settings.pipeline;
    if stages == 0 || !group.size().is_multiple_of(stages) {
        return Err(format!("--pipeline {stages} does not divide {} ranks", group.size()).into());
    }
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err("give at least one token of each request".into());
    }
    let width = group.size() / stages;
    let of = |color: usize| group.split(Some(color as i32), 0).map(|g| g.unwrap_or_else(Group::single));
    let tensor = of(group.rank() / width)?;
    let pipeline = of(group.rank() % width)?;
    let before = memory().0;
    let weights = Weights::open(group, [model], settings.dtype, device)?;
    let config = Config::read(model, &weights)?;
    let mut model = Model::load(&weights, config.clone(), settings.dtype, &tensor, &pipeline)?;
    let loaded = memory().0;
    let mut sampling = Sampling::new(settings.seed).temperature(settings.temperature).top(settings.top);

    let mut out = vec![Vec::new(); prompts.len()];
    // Prompts differ in length and are read one by one; from then on all requests go together.
    let mut last = Vec::new();
    let start = Instant::now();
    for (request, prompt) in prompts.iter().enumerate() {
        let ids = Tensor::new(vec![prompt.clone()], device)?;
        last.extend(next(&mut model, &mut sampling, &ids, &[request])?);
    }
    let prompt_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let in_calls = time_in_calls();
    let mut open: Vec<usize> = (0..prompts.len()).collect();
    let mut count = 0;
    loop {
        for (&request, &token) in open.iter().zip(&last) {
            out[request].push(token);
            each(request, token);
        }
        let goes_on = |(_, token): &(usize, u32)| Some(*token) != config.end;
        let both: Vec<(usize, u32)> = open.iter().copied().zip(last).filter(goes_on).collect();
        (open, last) = both.into_iter().unzip();
        if open.is_empty() || out[open[0]].len() >= settings.tokens {
            break;
        }
        let ids = Tensor::from_vec(last, (open.len(), 1), device)?;
        last = next(&mut model, &mut sampling, &ids, &open)?;
        count += open.len();
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Outcome {
        tokens: out,
        tokens_per_s: count as f64 / seconds,
        prompt_tokens_per_s: prompts.iter().map(Vec::len).sum::<usize>() as f64 / prompt_seconds,
        share_in_calls: (time_in_calls() - in_calls).as_secs_f64() / seconds,
        bytes_read: weights.bytes_read(),
        memory: [before, loaded, memory().1],
    })
}

/// The next token of each request: chosen on the last stage, known on all.
fn next(model: &mut Model, sampling: &mut Sampling, ids: &Tensor, requests: &[usize]) -> Result<Vec<u32>> {
    let mut chosen = match model.forward(ids, requests)? {
        Some((scores, vocabulary)) => sampling.choose(model.tensor(), &scores, &vocabulary)?,
        None => vec![0; requests.len()],
    };
    let pipeline = model.pipeline();
    pipeline.broadcast(&mut chosen, pipeline.size() - 1)?;
    Ok(chosen)
}
