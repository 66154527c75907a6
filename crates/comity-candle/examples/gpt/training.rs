//! The training itself, in each of its ways.

use super::{
    model::{Block, End, Model, Shape, Start},
    stages::pipelined,
    text::Text,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use comity::{Group, ReduceOp};
use comity_candle::{
    DataParallel, FullySharded, Parameter, Sampler, all_sum, fully_shard, save_checkpoint, time_in_calls,
};
use demo::memory;
use std::{
    error::Error,
    path::PathBuf,
    time::{Duration, Instant},
};

pub(crate) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Division of the work among the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Data,
    Tensor,
    FullySharded,
    Pipeline,
    Both,
}

impl Mode {
    pub(crate) fn parse(word: &str) -> Result<Self> {
        Ok(match word {
            "dp" => Self::Data,
            "tp" => Self::Tensor,
            "fsdp" => Self::FullySharded,
            "pp" => Self::Pipeline,
            "2d" => Self::Both,
            _ => return Err(format!("there is no mode {word:?}; there are dp, tp, fsdp, pp and 2d").into()),
        })
    }
}

/// The same on every rank.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) model: Shape,
    pub(crate) steps: usize,
    /// Samples a step, over all ranks.
    pub(crate) batch: usize,
    pub(crate) rate: f64,
    pub(crate) seed: u64,
    /// True if gradients travel while others are computed.
    pub(crate) overlap: bool,
    /// File for the trained weights; of a pipeline a folder.
    pub(crate) save: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        let model = Shape { vocabulary: 0, context: 64, width: 64, layers: 2, heads: 4 };
        Self {
            mode: Mode::Data,
            model,
            steps: 100,
            batch: 32,
            rate: 0.003,
            seed: 1,
            overlap: true,
            save: None,
        }
    }
}

/// Losses, the same on every rank, and this rank's figures.
pub(crate) struct Outcome {
    pub(crate) losses: Vec<f64>,
    /// Seconds of a step, and those of them in calls to other ranks.
    pub(crate) seconds: f64,
    pub(crate) in_calls: f64,
    /// Those on the rank that came last, which waits for no other: the mean over the steps. On all ranks the same.
    pub(crate) last_in_calls: f64,
    pub(crate) weight_bytes: usize,
    /// Bytes of memory that this process had before the model, and at most.
    pub(crate) memory_before: u64,
    pub(crate) memory_peak: u64,
}

/// A step on this rank's samples: their letters, those that follow, and the weight of their loss. The result is their loss.
pub(crate) type Step<'a> = Box<dyn FnMut(&Tensor, &Tensor, f64) -> Result<f64> + 'a>;

/// A way of training.
pub(crate) struct Trainer<'a> {
    /// Bytes of this rank's weights.
    pub(crate) weight_bytes: usize,
    pub(crate) step: Step<'a>,
    /// This rank's parts of the weights.
    pub(crate) parameters: Box<dyn Fn() -> Result<Vec<Parameter>> + 'a>,
}

/// Number of ranks that share the layers of one model.
fn ranks_side_by_side(mode: Mode, ranks: usize) -> usize {
    match mode {
        Mode::Data | Mode::FullySharded => 1,
        Mode::Tensor | Mode::Pipeline => ranks,
        Mode::Both => {
            if ranks.is_multiple_of(2) {
                2
            } else {
                1
            }
        }
    }
}

/// This rank's GPU where there is one; the other ways of training move host memory.
fn device_for(group: &Group, mode: Mode) -> Result<Device> {
    Ok(match mode {
        Mode::FullySharded | Mode::Pipeline => Device::Cpu,
        _ => comity_candle::device(group)?,
    })
}

pub(crate) fn train(
    group: &Group,
    text: &Text,
    settings: &Settings,
    say: impl Fn(String),
) -> Result<Outcome> {
    let shape = Shape { vocabulary: text.vocabulary, ..settings.model.clone() };
    let samples = text.samples(shape.context);
    let batch = settings.batch;
    let width = ranks_side_by_side(settings.mode, group.size());
    // Ranks side by side share the layers; those with the same place among them share the batch.
    let of = |color: usize| group.split(Some(color as i32), 0).map(|g| g.unwrap_or_else(Group::single));
    let layers = of(group.rank() / width)?;
    let data = of(group.rank() % width)?;
    if batch < data.size() || batch > samples {
        return Err(format!(
            "--batch {batch} must lie between {}, the ranks that share it, and {samples}, the samples of the text",
            data.size()
        )
        .into());
    }
    let memory_before = memory().0;
    let device = device_for(group, settings.mode)?;
    let sampler = Sampler::new(samples, batch, settings.seed);
    let Trainer { weight_bytes, mut step, parameters } = match settings.mode {
        Mode::FullySharded => fully_sharded(&data, &shape, settings)?,
        Mode::Pipeline => pipelined(&layers, &shape, settings)?,
        _ => replicated(&layers, &data, &device, &shape, settings)?,
    };
    let mut losses = Vec::new();
    let mut waits = Vec::new();
    let mut epoch = 0;
    let mut shares = Vec::new();
    let mut clock = Clock::start();
    while losses.len() < settings.steps {
        if shares.is_empty() {
            shares = sampler.epoch(&data, epoch);
            epoch += 1;
        }
        let Some(share) = shares.pop() else { break };
        let (ids, targets) = text.batch(&share.samples, shape.context, &device)?;
        let before = time_in_calls();
        let mine = Tensor::new(step(&ids, &targets, share.weight)?, &Device::Cpu)?;
        waits.push((time_in_calls() - before).as_secs_f64());
        let loss = all_sum(&data, &mine)?.to_scalar::<f64>()? / data.size() as f64;
        losses.push(loss);
        clock.steps += 1;
        let done = losses.len();
        if done == 1 || done % 10 == 0 || done == settings.steps {
            say(format!("step {done:4}  loss {loss:.4}  {:.0} samples/s", batch as f64 / clock.times().0));
        }
        if done == 1 && settings.steps > 1 {
            clock = Clock::start();
        }
    }
    let (seconds, in_calls) = clock.times();
    save(settings, &layers, &data, parameters)?;
    let memory_peak = memory().1;
    group.all_reduce(&mut waits, ReduceOp::Min)?;
    let counted = waits.get(1..).filter(|w| !w.is_empty()).unwrap_or(&waits);
    let last_in_calls = counted.iter().sum::<f64>() / counted.len().max(1) as f64;
    Ok(Outcome { losses, seconds, in_calls, last_in_calls, weight_bytes, memory_before, memory_peak })
}

/// Write the weights where that was asked for.
fn save(
    settings: &Settings,
    layers: &Group,
    data: &Group,
    parameters: impl Fn() -> Result<Vec<Parameter>>,
) -> Result<()> {
    let Some(file) = &settings.save else { return Ok(()) };
    match settings.mode {
        Mode::FullySharded => save_checkpoint(data, file, &parameters()?)?,
        // Each stage has other weights; whoever reads the folder has all.
        Mode::Pipeline => {
            std::fs::create_dir_all(file).map_err(|e| format!("cannot make {}: {e}", file.display()))?;
            let stage = file.join(format!("stage-{}.safetensors", layers.rank()));
            save_checkpoint(&Group::single(), stage, &parameters()?)?;
        }
        // Of ranks that share the batch, each has the same weights.
        _ if data.rank() == 0 => save_checkpoint(layers, file, &parameters()?)?,
        _ => (),
    }
    Ok(())
}

/// Steps since some moment. The first of all allocates, and learns in which order gradients come: it counts only where it is alone.
struct Clock {
    start: Instant,
    in_calls: Duration,
    steps: u32,
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), in_calls: time_in_calls(), steps: 0 }
    }

    /// Seconds of a step, and those of them in calls to other ranks.
    fn times(&self) -> (f64, f64) {
        let steps = f64::from(self.steps.max(1));
        let of = |time: Duration| time.as_secs_f64() / steps;
        (of(self.start.elapsed()), of(time_in_calls() - self.in_calls))
    }
}

pub(crate) fn adam(settings: &Settings) -> ParamsAdamW {
    ParamsAdamW { lr: settings.rate, weight_decay: 0.0, ..Default::default() }
}

pub(crate) fn bytes<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> usize {
    tensors.into_iter().map(|x| x.elem_count() * x.dtype().size_in_bytes()).sum()
}

/// Layers shared by one group, and the batch by another.
fn replicated<'a>(
    layers: &Group,
    data: &Group,
    device: &Device,
    shape: &Shape,
    settings: &Settings,
) -> Result<Trainer<'a>> {
    let vars = VarMap::new();
    let model = Model::new(layers, shape, VarBuilder::from_varmap(&vars, DType::F32, device))?;
    let parameters = model.parameters();
    drop(model);
    begin(layers, &parameters, settings.seed)?;
    let mut training = DataParallel::new(data, &vars)?.overlap(settings.overlap);
    let mut adam = AdamW::new(vars.all_vars(), adam(settings))?;
    let layers = layers.clone();
    let shape = shape.clone();
    let held = bytes(parameters.iter().map(|p| &p.tensor));
    let step = move |ids: &Tensor, targets: &Tensor, weight: f64| -> Result<f64> {
        let (loss, gradients) = training.gradients(&[()], |vb, ()| {
            Ok((Model::new(&layers, &shape, vb)?.loss(ids, targets)? * weight)?)
        })?;
        adam.step(&gradients)?;
        Ok(loss)
    };
    Ok(Trainer {
        weight_bytes: held,
        step: Box::new(step),
        parameters: Box::new(move || Ok(parameters.clone())),
    })
}

/// Every layer in parts, gathered while it is used.
fn fully_sharded<'a>(data: &Group, shape: &Shape, settings: &Settings) -> Result<Trainer<'a>> {
    let one = Group::single();
    let vars = VarMap::new();
    let model = Model::new(&one, shape, VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
    let parameters = model.parameters();
    drop(model);
    begin(&one, &parameters, settings.seed)?;
    let blocks = (0..shape.layers).map(|i| format!("blocks.{i}"));
    let prefixes: Vec<String> =
        ["start".to_string()].into_iter().chain(blocks).chain(["end".to_string()]).collect();
    let named = prefixes.iter().map(|prefix| {
        let own = |p: &Parameter| {
            let name = p.name.strip_prefix(prefix)?.strip_prefix('.')?;
            Some((name.to_string(), p.tensor.detach()))
        };
        parameters.iter().filter_map(own).collect()
    });
    let layers: Vec<FullySharded> = fully_shard(data, named)?;
    let variables: Vec<_> = layers.iter().map(|l| l.variable().clone()).collect();
    let held = bytes(variables.iter().map(|v| v.as_tensor()));
    let mut adam = AdamW::new(variables, adam(settings))?;
    let shape = shape.clone();
    let parts = layers.clone();
    let step = move |ids: &Tensor, targets: &Tensor, weight: f64| -> Result<f64> {
        let mut x = ids.clone();
        for (i, layer) in layers.iter().enumerate() {
            let shape = shape.clone();
            let targets = targets.clone();
            let last = layers.len() - 1;
            x = layer.forward(&x, move |vb, x| match i {
                0 => Start::new(&Group::single(), &shape, vb)?.forward(x),
                i if i == last => End::new(&Group::single(), &shape, vb)?.loss(x, &targets),
                _ => Block::new(&Group::single(), &shape, vb)?.forward(x),
            })?;
        }
        let loss = (x * weight)?;
        adam.step(&loss.backward()?)?;
        Ok(f64::from(loss.to_scalar::<f32>()?))
    };
    let parameters = move || {
        let mut all = Vec::new();
        for (layer, prefix) in parts.iter().zip(&prefixes) {
            all.extend(layer.parameters(prefix)?);
        }
        Ok(all)
    };
    Ok(Trainer { weight_bytes: held, step: Box::new(step), parameters: Box::new(parameters) })
}

/// Set every parameter to this rank's part of numbers that depend on its name and the seed alone.
pub(crate) fn begin(group: &Group, parameters: &[Parameter], seed: u64) -> Result<()> {
    for p in parameters.iter().filter(|p| !p.name.contains("norm")) {
        let shape = p.whole_shape();
        let inputs = *shape.last().unwrap_or(&1);
        let scale = if p.name.starts_with("start") { 0.3 } else { (1.0 / inputs as f64).sqrt() };
        let mut state = p.name.bytes().fold(seed, |h, b| h.wrapping_mul(0x0100_0000_01b3) ^ u64::from(b));
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale as f32
            })
            .collect();
        let whole = Tensor::from_vec(values, shape, &Device::Cpu)?;
        let mine = match &p.part {
            Some((axis, partition)) => partition.take(&whole, *axis, group.rank())?,
            None => whole,
        };
        let variable = p.variable().ok_or_else(|| format!("{} is no variable", p.name))?;
        variable.set(&mine.to_device(variable.device())?)?;
    }
    Ok(())
}
