//! Attention with divided heads, against the same attention on one rank, written out.

use super::{near, noise, on_ranks, variable};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::Linear;
use comity_candle::{
    AttentionLayers, Heads, KvCache, Result, Sampling, ShardedAttention, Sharding, causal_mask,
};

const WIDTH: usize = 10;
const HEAD: usize = 4;
const TIME: usize = 5;

fn mask() -> Tensor {
    let rows: Vec<f32> =
        (0..TIME * TIME).map(|i| if i % TIME > i / TIME { f32::NEG_INFINITY } else { 0.0 }).collect();
    Tensor::from_vec(rows, (TIME, TIME), &Device::Cpu).unwrap()
}

fn plain(x: &Tensor, [q, k, v, o]: &[Linear; 4], heads: usize, keys: usize) -> candle_core::Result<Tensor> {
    let (batch, time, _) = x.dims3()?;
    let split = |y: Tensor, n: usize| y.reshape((batch, time, n, HEAD))?.transpose(1, 2)?.contiguous();
    let spread = |y: Tensor| {
        let y = y.unsqueeze(2)?.broadcast_as((batch, keys, heads / keys, time, HEAD))?;
        y.contiguous()?.reshape((batch, heads, time, HEAD))
    };
    let q = split(q.forward(x)?, heads)?;
    let k = spread(split(k.forward(x)?, keys)?)?;
    let v = spread(split(v.forward(x)?, keys)?)?;
    let scores = (q.matmul(&k.t()?)? / 2.0)?.broadcast_add(&mask().to_dtype(x.dtype())?)?;
    let y = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
    o.forward(&y.transpose(1, 2)?.contiguous()?.reshape((batch, time, heads * HEAD))?)
}

#[test]
fn heads_are_divided_and_keys_replicated_where_they_are_few() {
    for (queries, keys) in [(4, 4), (6, 2), (4, 1), (6, 3)] {
        compare(queries, keys, DType::F32, 1e-4);
    }
    // Outputs and gradients reach 20, where neighbours of bf16 lie 0.125 apart.
    compare(4, 2, DType::BF16, 0.5);
}

fn compare(queries: usize, keys: usize, dtype: DType, far: f32) {
    let v = |x: Tensor| variable(&x.to_dtype(dtype).unwrap()).into_inner();
    let linear = |out: usize, inputs: usize, seed: u64| {
        Linear::new(v(noise((out, inputs), seed)), Some(v(noise(out, seed + 100))))
    };
    let layers = [
        linear(queries * HEAD, WIDTH, 1),
        linear(keys * HEAD, WIDTH, 2),
        linear(keys * HEAD, WIDTH, 3),
        linear(WIDTH, queries * HEAD, 4),
    ];
    let x0 = noise((2, TIME, WIDTH), 5).to_dtype(dtype).unwrap();
    let c = noise((2, TIME, WIDTH), 6).to_dtype(dtype).unwrap();
    let x = variable(&x0);
    let want = plain(&x, &layers, queries, keys).unwrap();
    let all = (&want * &c).unwrap().sum_all().unwrap().backward().unwrap();
    let layers = &layers;
    for n in 1..=4 {
        on_ranks(n, |g| {
            let heads = Heads::new(queries, keys, HEAD, n)?;
            let [q, k, v, o] = layers;
            let attention = ShardedAttention::from_layers(g, &AttentionLayers { q, k, v, o }, &heads)?;
            let mine = variable(&x0);
            let (q, k, v) = attention.project(&mine)?;
            assert_eq!(q.dim(1)?, heads.queries(g.rank()).len());
            assert_eq!(k.dim(1)?, heads.keys(g.rank()).len());
            let y = attention.attend(&q, &k, &v, Some(&mask()))?;
            near(&y, &want, far / 10.0);
            let forward = g.stats().calls;
            let gradients = (y * &c)?.sum_all()?.backward()?;
            if !heads.replicates_keys() && n > 1 {
                // One sum forward, and one back for queries, keys and values together.
                assert_eq!((forward, g.stats().calls), (1, 2));
            }
            near(gradients.get(&mine).unwrap(), all.get(&x).unwrap(), far);
            let wholes = layers.iter().flat_map(|l| [l.weight(), l.bias().unwrap()]);
            for (p, whole) in attention.parameters("attention").iter().zip(wholes) {
                let want = all.get(whole).unwrap();
                let want = match &p.part {
                    Some((axis, partition)) => partition.take(want, *axis, g.rank())?,
                    None => want.clone(),
                };
                near(gradients.get(&p.tensor).unwrap(), &want, far);
            }
            Ok(())
        });
    }
}

#[test]
fn requests_of_different_lengths_go_on_from_a_cache() {
    let linear = |out: usize, inputs: usize, seed: u64| Linear::new(noise((out, inputs), seed), None);
    let layers = [
        linear(6 * HEAD, WIDTH, 1),
        linear(2 * HEAD, WIDTH, 2),
        linear(2 * HEAD, WIDTH, 3),
        linear(WIDTH, 6 * HEAD, 4),
    ];
    let [q, k, v, o] = &layers;
    let sequences = [noise((1, TIME, WIDTH), 5), noise((1, TIME - 2, WIDTH), 6)];
    for n in 1..=4 {
        on_ranks(n, |g| {
            let heads = Heads::new(6, 2, HEAD, n)?;
            let attention = ShardedAttention::from_layers(g, &AttentionLayers { q, k, v, o }, &heads)?;
            let mut cache = KvCache::new(2);
            let run = |cache: &mut KvCache, x: &Tensor, requests: &[usize]| {
                let (q, k, v) = attention.project(x)?;
                attention.attend_cached(&q, &k, &v, cache, requests)
            };
            // All at once, without a cache.
            let whole = |x: &Tensor| {
                let (q, k, v) = attention.project(x)?;
                attention.attend(&q, &k, &v, Some(&causal_mask(x.dim(1)?, 0, x.device())?))
            };
            let wants = [whole(&sequences[0])?, whole(&sequences[1])?];
            // The prompts by themselves, all but the last two tokens; then both requests together.
            for (i, x) in sequences.iter().enumerate() {
                let prompt = x.dim(1)? - 2;
                let y = run(&mut cache, &x.narrow(1, 0, prompt)?, &[i])?;
                near(&y, &wants[i].narrow(1, 0, prompt)?, 1e-5);
            }
            for step in [2, 1] {
                let last = |x: &Tensor| x.narrow(1, x.dim(1)? - step, 1);
                let x = Tensor::cat(&[last(&sequences[0])?, last(&sequences[1])?], 0)?;
                let y = run(&mut cache, &x, &[0, 1])?;
                near(&y, &Tensor::cat(&[last(&wants[0])?, last(&wants[1])?], 0)?, 1e-5);
            }
            assert_eq!((cache.len(0), cache.len(1)), (TIME, TIME - 2));
            cache.clear(0);
            near(&run(&mut cache, &sequences[0], &[0])?, &wants[0], 1e-5);
            Ok(())
        });
    }
}

#[test]
fn ranks_choose_the_same_tokens() {
    let scores = noise((3, 11), 1);
    let run = |n: usize| {
        let all = on_ranks(n, |g| {
            let vocabulary = Sharding::balanced().partition(11, n)?;
            let mine = vocabulary.take(&scores, 1, g.rank())?;
            let mut sampling = Sampling::new(7).top(5);
            (0..20).map(|_| sampling.choose(g, &mine, &vocabulary)).collect::<Result<Vec<_>>>()
        });
        assert!(all.iter().all(|a| *a == all[0]));
        all[0].clone()
    };
    let want = run(1);
    assert!(want.iter().any(|t| *t != want[0]), "{want:?}");
    for n in 2..=4 {
        assert_eq!(run(n), want);
    }
}
