//! Pairs of linear layers, against the same pair on one rank.

use super::{near, noise, on_ranks, variable};
use candle_core::{DType, Module, Tensor, Var};
use candle_nn::Linear;
use comity_candle::{
    AllToShardedLinear, Parameter, Segments, ShardedToAllLinear, Sharding, ShardingType, shard_in_place,
    variables,
};
use std::collections::HashMap;

const INPUTS: usize = 12;
const HIDDEN: usize = 10;
const OUTPUTS: usize = 7;

/// Both layers whole, with variables.
fn whole(dtype: DType, fused: usize) -> (Linear, Linear) {
    let v = |shape: (usize, usize), seed| variable(&noise(shape, seed).to_dtype(dtype).unwrap()).into_inner();
    let b = |n: usize, seed| variable(&noise(n, seed).to_dtype(dtype).unwrap()).into_inner();
    let up = Linear::new(v((fused * HIDDEN, INPUTS), 1), Some(b(fused * HIDDEN, 2)));
    (up, Linear::new(v((OUTPUTS, HIDDEN), 3), Some(b(OUTPUTS, 4))))
}

/// The function between the layers: a gate where the first is fused.
fn between(h: &Tensor, fused: usize) -> candle_core::Result<Tensor> {
    match fused {
        1 => h.relu(),
        _ => {
            let halves = h.chunk(2, candle_core::D::Minus1)?;
            halves[0].silu()? * &halves[1]
        }
    }
}

/// The gradient of the whole that a part should have.
fn part_of(gradient: &Tensor, p: &Parameter, rank: usize) -> Tensor {
    match &p.part {
        Some((axis, partition)) => partition.take(gradient, *axis, rank).unwrap(),
        None => gradient.clone(),
    }
}

fn compare(n: usize, dtype: DType, up: &Sharding, down: &Sharding, fused: usize, far: f32) {
    let x0 = noise((2, 3, INPUTS), 5).to_dtype(dtype).unwrap();
    let c = noise((2, 3, OUTPUTS), 6).to_dtype(dtype).unwrap();
    let (one, two) = whole(dtype, fused);
    let x = variable(&x0);
    let want = two.forward(&between(&one.forward(&x).unwrap(), fused).unwrap()).unwrap();
    let all = (&want * &c).unwrap().sum_all().unwrap().backward().unwrap();
    let one = &one;
    let two = &two;
    on_ranks(n, |g| {
        let up = AllToShardedLinear::from_linear(g, one, up)?;
        let down = ShardedToAllLinear::from_linear(g, two, down)?;
        let mine = variable(&x0);
        let y = down.forward(&between(&up.forward(&mine)?, fused)?)?;
        near(&y, &want, far);
        let gradients = (y * &c)?.sum_all()?.backward()?;
        near(gradients.get(&mine).unwrap(), all.get(&x).unwrap(), far);
        let wholes = [one.weight(), one.bias().unwrap(), two.weight(), two.bias().unwrap()];
        let parts = [up.parameters("up"), down.parameters("down")].concat();
        assert_eq!(variables(&parts).len(), 4);
        for (p, w) in parts.iter().zip(wholes) {
            assert_eq!(p.whole_shape(), w.dims(), "{}", p.name);
            near(gradients.get(&p.tensor).unwrap(), &part_of(all.get(w).unwrap(), p, g.rank()), far);
        }
        Ok(())
    });
}

#[test]
fn a_pair_does_the_same_on_any_number_of_ranks() {
    for n in 1..=4 {
        let balanced = Sharding::balanced();
        compare(n, DType::F32, &balanced, &balanced, 1, 1e-5);
        // Values reach about 12, where neighbours of bf16 lie 0.0625 apart.
        compare(n, DType::BF16, &balanced, &balanced, 1, 0.25);
        let weighted = Sharding::weighted((1..=n).map(|w| w as f64).collect::<Vec<_>>());
        compare(n, DType::F32, &weighted, &weighted, 1, 1e-5);
    }
    compare(2, DType::F32, &Sharding::even(), &Sharding::even(), 1, 1e-5);
}

#[test]
fn two_layers_of_one_input_sum_its_gradient_once() {
    let (one, _) = whole(DType::F32, 1);
    let other = Linear::new(variable(&noise((HIDDEN, INPUTS), 7)).into_inner(), None);
    let x0 = noise((3, INPUTS), 5);
    let x = variable(&x0);
    let want = (one.forward(&x).unwrap() * other.forward(&x).unwrap()).unwrap();
    let all = want.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let one = &one;
    let other = &other;
    for n in 2..=3 {
        on_ranks(n, |g| {
            let one = AllToShardedLinear::from_linear(g, one, &Sharding::balanced())?;
            let other = AllToShardedLinear::from_linear(g, other, &Sharding::balanced())?;
            let mine = variable(&x0);
            let (a, b) = one.forward_both(&other, &mine)?;
            let y = (a * b)?;
            near(&y, &one.outputs().take(&want, 1, g.rank())?, 1e-5);
            let before = g.stats().calls;
            let gradients = y.sqr()?.sum_all()?.backward()?;
            assert_eq!(g.stats().calls, before + 1);
            near(gradients.get(&mine).unwrap(), all.get(&x).unwrap(), 1e-3);
            Ok(())
        });
    }
}

#[test]
fn fused_layers_are_divided_segment_by_segment() {
    for n in 1..=4 {
        for segments in [Segments::Count(2), Segments::Indices(vec![HIDDEN]), Segments::Fractions(vec![0.5])]
        {
            let up = Sharding::balanced().segments(segments);
            compare(n, DType::F32, &up, &Sharding::balanced(), 2, 1e-5);
        }
    }
}

#[test]
fn a_new_layer_begins_like_a_whole_one() {
    use candle_nn::{VarBuilder, VarMap};
    on_ranks(3, |g| {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, &candle_core::Device::Cpu);
        let up = AllToShardedLinear::new(g, 300, 31, true, &Sharding::balanced(), vb.pp("up"))?;
        let down = ShardedToAllLinear::new(g, 31, 5, true, &Sharding::balanced(), vb.pp("down"))?;
        let rows = up.outputs().sizes()[g.rank()];
        assert_eq!(up.local().weight().dims(), [rows, 300]);
        assert_eq!(down.local().weight().dims(), [5, rows]);
        assert_eq!(vars.all_vars().len(), 4);
        // Kaiming's deviation, by the inputs of the whole layer.
        let d = up.local().weight().sqr()?.mean_all()?.to_scalar::<f32>()?.sqrt();
        assert!((d - (2f32 / 300.0).sqrt()).abs() < 0.01, "{d}");
        Ok(())
    });
}

#[test]
fn named_tensors_are_sharded_in_place_by_a_rule() {
    on_ranks(3, |g| {
        let bias = Var::from_tensor(&noise(7, 2))?.into_inner();
        let mut all: HashMap<String, Tensor> = [
            ("a.up.weight".to_string(), noise((7, 4), 1)),
            ("a.up.bias".to_string(), bias),
            ("a.down.weight".to_string(), noise((4, 7), 3)),
            ("a.down.bias".to_string(), noise(4, 4)),
            ("norm.weight".to_string(), noise(4, 5)),
        ]
        .into();
        let parts = shard_in_place(g, &mut all, |name, x| {
            let direction = match name {
                n if n.contains(".up.") => ShardingType::AllToSharded,
                n if n.contains(".down.") => ShardingType::ShardedToAll,
                _ => return None,
            };
            Some((direction.axis(name, x)?, Sharding::balanced()))
        })?;
        let mine = [3, 2, 2][g.rank()];
        assert_eq!(all["a.up.weight"].dims(), [mine, 4]);
        assert_eq!(all["a.up.bias"].dims(), [mine]);
        assert!(all["a.up.bias"].is_variable() && !all["a.up.weight"].is_variable());
        assert_eq!(all["a.down.weight"].dims(), [4, mine]);
        assert_eq!((all["a.down.bias"].dims(), all["norm.weight"].dims()), (&[4][..], &[4][..]));
        assert_eq!(parts.len(), 3);
        Ok(())
    });
}

#[test]
fn what_is_not_trained_gets_no_gradient() {
    let frozen = Linear::new(noise((6, 4), 1), Some(noise(6, 2)));
    on_ranks(2, |g| {
        let layer = ShardedToAllLinear::from_linear(g, &frozen, &Sharding::balanced())?;
        let weight = layer.local().weight();
        let bias = layer.local().bias().unwrap();
        let x = variable(&noise((3, 2), 3));
        let gradients = layer.forward(&x)?.sum_all()?.backward()?;
        assert!(gradients.get(&x).is_some());
        assert!(gradients.get(weight).is_none() && gradients.get(bias).is_none());
        let trained = Linear::new(variable(&noise((6, 4), 1)).into_inner(), None);
        let layer = ShardedToAllLinear::from_linear(g, &trained, &Sharding::balanced())?;
        let fixed = noise((3, 2), 3);
        let gradients = layer.forward(&fixed)?.sum_all()?.backward()?;
        assert!(gradients.get(layer.local().weight()).is_some() && gradients.get(&fixed).is_none());
        Ok(())
    });
}
