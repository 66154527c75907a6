//! Fully sharded layers, against the same layers whole with averaged gradients.

use super::{near, noise, on_ranks, variable};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{AdamW, Embedding, Optimizer, ParamsAdamW, VarBuilder, linear};
use comity::Group;
use comity_candle::{
    FullySharded, Result, Weights, average_gradients, fully_shard, fully_shard_as, save_checkpoint,
};
use std::collections::HashMap;

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
