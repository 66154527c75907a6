//! Fully sharded layers, against the same layers whole with averaged gradients.

use super::{near, noise, on_ranks, variable};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{AdamW, Embedding, Optimizer, ParamsAdamW, VarBuilder, linear};
use comity::Group;
use comity_candle::{
    Error, FullySharded, Result, ShardingCause, Weights, average_gradients, clip_grad_norm_sharded,
    fully_shard, fully_shard_as, save_checkpoint,
};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

const WIDTH: usize = 5;

/// An embedding and three layers; 5 rows and biases on up to 4 ranks are shared unevenly.
fn layers(dtype: DType) -> Vec<Vec<(String, Tensor)>> {
    let named = |name: &str, x: Tensor| (name.to_string(), x.to_dtype(dtype).unwrap());
    let linear =
        |seed| vec![named("weight", noise((WIDTH, WIDTH), seed)), named("bias", noise(WIDTH, seed + 1))];
    let scale = named("scale", Tensor::new(1.5f32, &Device::Cpu).unwrap());
    let mut last = linear(7);
    last.push(scale);
    vec![vec![named("rows", noise((2, WIDTH), 1))], linear(3), linear(5), last]
}

fn compute(i: usize, vb: VarBuilder, x: &Tensor) -> Result<Tensor> {
    Ok(match i {
        0 => Embedding::new(vb.get((2, WIDTH), "rows")?, WIDTH).forward(x)?,
        3 => linear(WIDTH, WIDTH, vb.clone())?.forward(x)?.broadcast_mul(&vb.get((), "scale")?)?,
        _ => (linear(WIDTH, WIDTH, vb)?.forward(x)?.tanh()? + x)?,
    })
}

fn batch(rank: usize, step: u32) -> Tensor {
    let ids: Vec<u32> = (0..6).map(|i| (i + i / 2 + rank as u32 + step) % 2).collect();
    Tensor::from_vec(ids, (2, 3), &Device::Cpu).unwrap()
}

/// Two steps with whole layers.
fn whole(g: &Group) -> Result<Vec<HashMap<String, Tensor>>> {
    let vars: Vec<Vec<(String, Var)>> = layers(DType::F32)
        .into_iter()
        .map(|l| l.into_iter().map(|(n, x)| (n, variable(&x))).collect())
        .collect();
    let all: Vec<Var> = vars.iter().flatten().map(|(_, v)| v.clone()).collect();
    let mut adam = AdamW::new(all.clone(), ParamsAdamW { lr: 0.01, ..Default::default() })?;
    for step in 0..2 {
        let mut x = batch(g.rank(), step);
        for (i, layer) in vars.iter().enumerate() {
            let tensors = layer.iter().map(|(n, v)| (n.clone(), v.as_tensor().clone())).collect();
            x = compute(i, VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu), &x)?;
        }
        let mut gradients = x.sqr()?.mean_all()?.backward()?;
        average_gradients(g, &all, &mut gradients)?;
        adam.step(&gradients)?;
    }
    Ok(vars.into_iter().map(|l| l.into_iter().map(|(n, v)| (n, v.as_detached_tensor())).collect()).collect())
}

fn sharded(g: &Group, layers: &[FullySharded]) -> Result<()> {
    let all = layers.iter().map(|l| l.variable().clone()).collect();
    let mut adam = AdamW::new(all, ParamsAdamW { lr: 0.01, ..Default::default() })?;
    for step in 0..2 {
        let mut x = batch(g.rank(), step);
        for (i, layer) in layers.iter().enumerate() {
            x = layer.forward(&x, move |vb, x| compute(i, vb, x))?;
        }
        adam.backward_step(&x.to_dtype(DType::F32)?.sqr()?.mean_all()?)?;
    }
    Ok(())
}

#[test]
fn each_rank_trains_its_rows_as_the_whole_is_trained() {
    let file = std::env::temp_dir().join(format!("comity-candle-fsdp-{}.safetensors", std::process::id()));
    for n in 1..=4 {
        on_ranks(n, |g| {
            let want = whole(g)?;
            let mine = fully_shard(g, layers(DType::F32))?;
            sharded(g, &mine)?;
            let kept: usize = mine.iter().map(|l| l.variable().elem_count()).sum();
            let total = 2 * WIDTH + 3 * (WIDTH * WIDTH + WIDTH) + 1;
            // Rows are shared in whole, and a rank has at least one element of each layer.
            assert!(kept <= total.div_ceil(n) + 4 * 2 * WIDTH, "{kept} of {total}");
            let mut all = Vec::new();
            for (i, (layer, want)) in mine.iter().zip(&want).enumerate() {
                let parameters = layer.parameters(&i.to_string())?;
                for p in &parameters {
                    let whole = &want[p.name.split_once('.').unwrap().1];
                    assert_eq!(p.whole_shape(), whole.dims());
                    match &p.part {
                        Some((axis, partition)) => {
                            near(&p.tensor, &partition.take(whole, *axis, g.rank())?, 1e-5)
                        }
                        None if g.rank() == 0 => near(&p.tensor, whole, 1e-5),
                        None => (),
                    }
                }
                all.extend(parameters);
            }
            // Through a file, into layers that begin otherwise.
            save_checkpoint(g, &file, &all)?;
            let other = fully_shard(g, layers(DType::F32))?;
            let weights = Weights::open(g, [&file], DType::F32, &Device::Cpu)?;
            for (i, (a, b)) in other.iter().zip(&mine).enumerate() {
                a.load(&weights.pp(i))?;
                near(a.variable(), b.variable(), 0.0);
            }
            g.barrier().map_err(Into::into)
        });
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_checkpoint_of_three_ranks_is_read_by_any_number() {
    let file = std::env::temp_dir().join(format!("comity-candle-parts-{}.safetensors", std::process::id()));
    let shift = |(name, x): (String, Tensor)| (name, (x + 1.0).unwrap());
    let others = || layers(DType::F32).into_iter().map(move |l| l.into_iter().map(shift).collect());
    on_ranks(3, |g| {
        let mut all = Vec::new();
        for (i, layer) in fully_shard(g, others())?.iter().enumerate() {
            all.extend(layer.parameters(&i.to_string())?);
        }
        save_checkpoint(g, &file, &all)
    });
    for n in [1, 2, 4] {
        on_ranks(n, |g| {
            let weights = Weights::open(g, [&file], DType::F32, &Device::Cpu)?;
            let want = fully_shard(g, others())?;
            for (i, (layer, want)) in fully_shard(g, layers(DType::F32))?.iter().zip(&want).enumerate() {
                layer.load(&weights.pp(i))?;
                near(layer.variable(), want.variable(), 0.0);
            }
            Ok(())
        });
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn weights_travel_in_another_type_than_they_are_kept_in() {
    on_ranks(3, |g| {
        let exact = fully_shard(g, layers(DType::F32))?;
        let rough = fully_shard_as(g, layers(DType::F32), Some(DType::BF16))?;
        let forward = |layers: &[FullySharded]| -> Result<Tensor> {
            let mut x = batch(g.rank(), 0);
            for (i, layer) in layers.iter().enumerate() {
                x = layer.forward(&x, move |vb, x| compute(i, vb, x))?;
            }
            Ok(x)
        };
        let y = forward(&rough)?;
        assert_eq!(y.dtype(), DType::BF16);
        near(&y, &forward(&exact)?, 0.1);
        let gradients = y.to_dtype(DType::F32)?.sum_all()?.backward()?;
        let v = rough[1].variable();
        assert_eq!(gradients.get(v).unwrap().dtype(), DType::F32);
        Ok(())
    });
}

/// The output of all layers for a batch of ids.
fn forward(layers: &[FullySharded], ids: &Tensor) -> Result<Tensor> {
    let mut x = ids.clone();
    for (i, layer) in layers.iter().enumerate() {
        x = layer.forward(&x, move |vb, x| compute(i, vb, x))?;
    }
    Ok(x)
}

/// Wait until the group has made so many calls.
fn await_calls(g: &Group, count: u64) {
    scope::await_that(&format!("{count} calls"), || g.stats().calls >= count);
}

#[test]
fn weights_of_the_next_layer_travel_while_one_is_computed() {
    on_ranks(3, |g| {
        let mine = fully_shard(g, layers(DType::F32))?;
        let count = mine.len() as u64;
        let before = g.stats().calls;
        let mut x = batch(g.rank(), 0);
        for (i, layer) in mine.iter().enumerate() {
            let group = g.clone();
            let passes = Arc::new(AtomicU64::new(0));
            x = layer.forward(&x, move |vb, x| {
                let i = i as u64;
                // A layer goes on when the weights of the next are there: forward, then back, where each layer also sends a gradient.
                match passes.fetch_add(1, SeqCst) {
                    0 => await_calls(&group, before + (i + 2).min(count)),
                    _ => await_calls(&group, before + count + 2 * (count - 1 - i) + 1 + u64::from(i > 0)),
                }
                compute(i as usize, vb, x)
            })?;
        }
        x.sqr()?.mean_all()?.backward()?;
        assert_eq!(g.stats().calls, before + 3 * count);
        Ok(())
    });
}

#[test]
fn weights_that_came_before_a_step_are_not_used_after_it() {
    on_ranks(2, |g| {
        let mine = fully_shard(g, layers(DType::F32))?;
        let first = |mine: &[FullySharded]| mine[0].forward(&batch(g.rank(), 0), |vb, x| compute(0, vb, x));
        let want = (first(&mine)? * 2.0)?;
        // A backward pass that ends at the second layer has asked for the weights of the first.
        let x = noise((2, WIDTH), 9);
        let loss = mine[1].forward(&x, |vb, x| compute(1, vb, x))?.sum_all()?;
        loss.backward()?;
        for layer in &mine {
            layer.variable().set(&(layer.variable().as_tensor() * 2.0)?)?;
        }
        near(&first(&mine)?, &want, 0.0);
        Ok(())
    });
}

#[test]
fn gradients_of_micro_batches_add_up() {
    on_ranks(3, |g| {
        let mine = fully_shard(g, layers(DType::F32))?;
        let parts = [batch(g.rank(), 0), batch(g.rank(), 1)];
        let whole = forward(&mine, &Tensor::cat(&parts, 0)?)?.sqr()?.mean_all()?.backward()?;
        let of = |ids: &Tensor| -> Result<Tensor> { Ok((forward(&mine, ids)?.sqr()?.mean_all()? / 2.0)?) };
        let together = (of(&parts[0])? + of(&parts[1])?)?.backward()?;
        let one = of(&parts[0])?.backward()?;
        let two = of(&parts[1])?.backward()?;
        for layer in &mine {
            let v = layer.variable();
            let want = whole.get(v).unwrap();
            near(together.get(v).unwrap(), want, 1e-5);
            near(&(one.get(v).unwrap() + two.get(v).unwrap())?, want, 1e-5);
        }
        Ok(())
    });
}

#[test]
fn the_norm_is_that_of_all_parts() {
    let clip = |g: &Group| -> Result<(f64, f64)> {
        let mine = fully_shard(g, layers(DType::F32))?;
        // The same batch on every rank: the average of the gradients is one rank's.
        let mut gradients = forward(&mine, &batch(0, 0))?.sqr()?.mean_all()?.backward()?;
        let parameters: Vec<_> = mine.iter().map(|l| l.parameter("layer")).collect();
        let norm = clip_grad_norm_sharded(g, &parameters, &mut gradients, 0.01)?;
        let clipped = clip_grad_norm_sharded(g, &parameters, &mut gradients, 1.0)?;
        // The parameters of a checkpoint are copies, which have no gradient.
        match clip_grad_norm_sharded(g, &mine[1].parameters("1")?, &mut gradients, 1.0) {
            Err(Error::Sharding(e)) => {
                assert_eq!((&*e.layer, e.cause), ("1.weight", ShardingCause::NoGradient))
            }
            other => panic!("{other:?}"),
        }
        Ok((norm, clipped))
    };
    let want = clip(&Group::single()).unwrap().0;
    assert!(want > 0.1, "{want}");
    for n in 2..=4 {
        for (norm, clipped) in on_ranks(n, clip) {
            assert!((norm / want - 1.0).abs() < 1e-5 && (clipped - 0.01).abs() < 1e-4, "{norm} {clipped}");
        }
    }
}

#[test]
fn types_that_differ_are_named() {
    let g = &Group::single();
    let named = |name: &str, dtype| (name.to_string(), noise(3, 1).to_dtype(dtype).unwrap());
    for (others, expected, got) in [(DType::BF16, "f32", "bf16"), (DType::U32, "f32", "u32")] {
        match fully_shard(g, [vec![named("a", DType::F32), named("b", others)]]) {
            Err(Error::Sharding(e)) => {
                let cause = ShardingCause::DType { expected: expected.into(), got: got.into() };
                assert_eq!((&*e.layer, e.cause), ("b", cause));
            }
            other => panic!("{other:?}"),
        }
    }
    let e = fully_shard(g, [vec![named("a", DType::U32)]]).unwrap_err().to_string();
    assert_eq!(e, "a: the parameter is u32, and f16, bf16, f32 or f64 is needed");
}
