//! The training as a pipeline: each rank has some of the parts of the model, and micro-batches go through them.

use super::{
    model::{Block, End, Shape, Start},
    training::{Result, Settings, Trainer, adam, begin, bytes},
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Optimizer, VarBuilder, VarMap};
use comity::Group;
use comity_candle::{Parameter, Passes, Pipeline, divide_layers};

/// A part of the model.
enum Part {
    Start(Start),
    Block(Box<Block>),
    End(End),
}

impl Part {
    fn new(index: usize, shape: &Shape, vb: &VarBuilder) -> Result<(Self, Vec<Parameter>)> {
        let one = Group::single();
        Ok(match index {
            0 => {
                let part = Start::new(&one, shape, vb.pp("start"))?;
                let parameters = part.parameters("start");
                (Self::Start(part), parameters)
            }
            i if i <= shape.layers => {
                let part = Block::new(&one, shape, vb.pp("blocks").pp(i - 1))?;
                let parameters = part.parameters(&format!("blocks.{}", i - 1));
                (Self::Block(Box::new(part)), parameters)
            }
            _ => {
                let part = End::new(&one, shape, vb.pp("end"))?;
                let parameters = part.parameters("end");
                (Self::End(part), parameters)
            }
        })
    }
}

/// Numbers of each part, by which the parts are divided.
fn sizes(shape: &Shape) -> Vec<u64> {
    let width = shape.width as u64;
    let letters = shape.vocabulary as u64;
    let mut sizes = vec![10 * width * width; shape.layers];
    sizes.insert(0, (letters + shape.context as u64) * width);
    sizes.push(letters * width);
    sizes
}

/// Some rows of a batch, those that follow, and the weight of their loss.
type Rows = (Tensor, Tensor, f64);

pub(crate) fn pipelined<'a>(group: &Group, shape: &Shape, settings: &Settings) -> Result<Trainer<'a>> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let mine = divide_layers(&sizes(shape), group.size())?[group.rank()].clone();
    let mut parts = Vec::new();
    let mut parameters = Vec::new();
    for index in mine {
        let (part, its) = Part::new(index, shape, &vb)?;
        parts.push(part);
        parameters.extend(its);
    }
    begin(&Group::single(), &parameters, settings.seed)?;
    let held = bytes(parameters.iter().map(|p| &p.tensor));
    let mut adam = AdamW::new(vars.all_vars(), adam(settings))?;
    let mut pipeline = Pipeline::new(group, Passes::OneForwardOneBackward)?;
    // Twice as many micro-batches as stages keep most stages busy most of the time.
    let count = 2 * group.size();
    let step = move |ids: &Tensor, targets: &Tensor, weight: f64| -> Result<f64> {
        let rows = ids.dim(0)?;
        let ids = ids.chunk(count.min(rows), 0)?;
        let targets = targets.chunk(count.min(rows), 0)?;
        let share = weight * ids.len() as f64 / rows as f64;
        let micro: Vec<Rows> = ids
            .into_iter()
            .zip(targets)
            .map(|(ids, targets)| Ok((ids.clone(), targets, share * ids.dim(0)? as f64)))
            .collect::<Result<_>>()?;
        let (loss, gradients) = pipeline.run(&micro, |input, (ids, targets, weight)| {
            let mut x = input.unwrap_or_else(|| ids.clone());
            for part in &parts {
                x = match part {
                    Part::Start(part) => part.forward(&x)?,
                    Part::Block(part) => part.forward(&x)?,
                    Part::End(part) => (part.loss(&x, targets)? * *weight)?,
                };
            }
            Ok(x)
        })?;
        adam.step(&gradients)?;
        Ok(loss)
    };
    let parameters = move || Ok(parameters.clone());
    Ok(Trainer { weight_bytes: held, step: Box::new(step), parameters: Box::new(parameters) })
}
