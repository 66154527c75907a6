//! Data parallelism, sampler and clipping, against one rank that has the whole batch.

use super::{near, noise, on_ranks, try_on_ranks, variable};
use candle_core::{
    CpuStorage, CustomOp1, DType, Device, Layout, Module, Shape, Tensor, Var, backend::BackendStorage,
};
use candle_nn::{Linear, Optimizer, SGD, VarBuilder, VarMap, linear};
use comity::Group;
use comity_candle::{
    DataParallel, Error, Parameter, Result, Sampler, Sharding, ShardingCause, ShardingType,
    clip_grad_norm_sharded, shard_linear, time_in_calls, variables,
};
use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

const LAYERS: usize = 5;
const WIDTH: usize = 72; // 20 KiB a layer: two buckets

fn model(vb: VarBuilder, x: &Tensor, tied: bool) -> Result<Tensor> {
    let mut x = x.clone();
    for i in 0..LAYERS {
        x = (linear(WIDTH, WIDTH, vb.pp(i))?.forward(&x)?.tanh()? + x)?;
    }
    if tied {
        // A weight that is used twice.
        x = linear(WIDTH, WIDTH, vb.pp(1))?.forward(&x)?;
    }
    Ok(x.sqr()?.mean_all()?)
}

fn start(seed: u64) -> Result<VarMap> {
    let vars = VarMap::new();
    model(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu), &noise((1, WIDTH), 0), false)?;
    // One that the model does not use.
    VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu).get(3, "unused")?;
    for (name, v) in vars.data().lock().unwrap().iter() {
        let mark = name.bytes().fold(seed, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        v.set(&(noise(v.shape(), mark) * 0.1)?)?;
    }
    Ok(vars)
}

fn named(vars: &VarMap) -> Vec<(String, Var)> {
    let mut all: Vec<_> = vars.data().lock().unwrap().iter().map(|(n, v)| (n.clone(), v.clone())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Two steps of training; each rank has its rows of a batch of 12, in micro-batches.
fn train(g: &Group, overlap: bool, micro: usize, seed: u64) -> Result<Vec<(String, Var)>> {
    let vars = start(seed)?;
    let mut training = DataParallel::new(g, &vars)?.overlap(overlap);
    let mut sgd = SGD::new(vars.all_vars(), 0.5)?;
    let rows = 12 / g.size();
    for step in 0..2 {
        let mine = noise((12, WIDTH), 50 + step).narrow(0, g.rank() * rows, rows)?;
        let parts = mine.chunk(micro, 0)?;
        let (_, gradients) = training.gradients(&parts, |vb, x| model(vb, x, true))?;
        let unused = &named(&vars).into_iter().find(|(n, _)| n == "unused").unwrap().1;
        assert!(gradients.get(unused).is_none());
        sgd.step(&gradients)?;
    }
    Ok(named(&vars))
}

#[test]
fn every_way_of_sharing_a_batch_learns_the_same() {
    let one = train(&Group::single(), false, 1, 1).unwrap();
    for (n, overlap, micro) in [(1, true, 3), (2, false, 1), (3, true, 2), (4, true, 1)] {
        let all = on_ranks(n, |g| train(g, overlap, micro, 1 + 9 * g.rank() as u64));
        for ((name, a), (_, b)) in all.iter().flat_map(|rank| rank.iter().zip(&one)) {
            let d = (a.as_tensor() - b.as_tensor()).unwrap().abs().unwrap().max_all().unwrap();
            let d = d.to_scalar::<f32>().unwrap();
            assert!(d < 1e-5, "{name} on {n} ranks, overlap {overlap}: {d:e}");
        }
        // The same bits on all ranks.
        for (a, b) in all[1..].iter().flat_map(|rank| rank.iter().zip(&all[0])) {
            near(&a.1, &b.1, 0.0);
        }
    }
}

/// An identity whose backward pass waits until the group has made a call since the forward pass.
struct Pause {
    group: Group,
    calls: AtomicU64,
}

impl CustomOp1 for Pause {
    fn name(&self) -> &'static str {
        "pause"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        self.calls.store(self.group.stats().calls, Ordering::SeqCst);
        Ok((x.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let until = Instant::now() + Duration::from_secs(10);
        while self.group.stats().calls == self.calls.load(Ordering::SeqCst) {
            assert!(Instant::now() < until, "nothing travels during the backward pass");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Some(gradient.clone()))
    }
}

#[test]
fn gradients_travel_while_others_are_computed() {
    on_ranks(2, |g| {
        let vars = start(1)?;
        let mut training = DataParallel::new(g, &vars)?;
        let x = variable(&noise((2, WIDTH), 1));
        training.gradients(&[()], |vb, ()| model(vb, &x, false))?; // learns the order
        let pause = || Pause { group: g.clone(), calls: AtomicU64::new(0) };
        training.gradients(&[()], |vb, ()| model(vb, &x.apply_op1(pause())?, false))?;
        Ok(())
    });
}

#[test]
fn waiting_for_a_late_rank_is_time_in_calls() {
    const LATE: Duration = Duration::from_millis(150);
    on_ranks(2, |g| {
        let vars = start(1)?;
        let mut training = DataParallel::new(g, &vars)?;
        let x = noise((2, WIDTH), 1);
        training.gradients(&[()], |vb, ()| model(vb, &x, false))?; // learns the order
        let mut waited = Duration::ZERO;
        // On a busy machine the other rank may be as late.
        for _ in 0..5 {
            g.barrier()?;
            let before = time_in_calls();
            if g.rank() == 1 {
                std::thread::sleep(LATE);
            }
            training.gradients(&[()], |vb, ()| model(vb, &x, false))?;
            waited = waited.max(time_in_calls() - before);
        }
        assert!(g.rank() == 1 || waited >= LATE / 2, "{waited:?}");
        Ok(())
    });
}

#[test]
fn a_rank_alone_adds_up_its_micro_batches() {
    let vars = start(1).unwrap();
    let mut training = DataParallel::new(&Group::single(), &vars).unwrap();
    let x = [noise((2, WIDTH), 1), noise((2, WIDTH), 2)];
    let (loss, gradients) = training.gradients(&x, |vb, x| model(vb, x, true)).unwrap();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let whole = model(vb, &Tensor::cat(&x, 0).unwrap(), true).unwrap();
    assert!((loss - f64::from(whole.to_scalar::<f32>().unwrap())).abs() < 1e-6);
    let want = whole.backward().unwrap();
    for (name, v) in vars.data().lock().unwrap().iter() {
        match (want.get(v), gradients.get(v)) {
            (Some(a), Some(b)) => near(a, b, 1e-5),
            (a, b) => assert!(a.is_none() && b.is_none(), "{name}"),
        }
    }
}

#[test]
fn ranks_with_other_variables_are_named() {
    let results = try_on_ranks(3, |g| {
        let vars = VarMap::new();
        // The same shapes; without their names the ranks would average one with the other.
        let name = if g.rank() == 1 { "other" } else { "layer" };
        linear(2, 2, VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu).pp(name))?;
        DataParallel::new(g, &vars)
    });
    for r in results {
        let Err(Error::Sharding(e)) = r else { panic!("no error") };
        assert_eq!(e.cause, ShardingCause::Parameters { differing: vec![1] });
        assert_eq!(
            e.to_string(),
            "data parallel training: rank 1 has other parameters than rank 0; give the same names, shapes and \
             types on all 3 ranks"
        );
    }
}

#[test]
fn a_batch_is_shared_without_leaving_out_or_repeating() {
    for n in [1, 3] {
        let sampler = Sampler::new(103, 10, 5);
        let all = on_ranks(n, |g| Ok((sampler.epoch(g, 0), sampler.epoch(g, 1))));
        for batch in 0..10 {
            let of = |r: usize| &all[r].0[batch];
            let mut seen: Vec<usize> = (0..n).flat_map(|r| of(r).samples.clone()).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 10);
            let weights: f64 = (0..n).map(|r| of(r).weight).sum();
            assert!((weights / n as f64 - 1.0).abs() < 1e-9);
        }
        let seen: HashSet<usize> = all.iter().flat_map(|a| &a.0).flat_map(|s| s.samples.clone()).collect();
        assert_eq!(seen.len(), 100);
        assert_ne!(all[0].0, all[0].1);
    }
}

#[test]
fn the_norm_is_that_of_the_whole_model() {
    let one =
        Linear::new(variable(&noise((6, 4), 1)).into_inner(), Some(variable(&noise(6, 2)).into_inner()));
    let two =
        Linear::new(variable(&noise((3, 6), 3)).into_inner(), Some(variable(&noise(3, 4)).into_inner()));
    let clip = |g: &Group| -> Result<(f64, Vec<(Parameter, Tensor)>)> {
        let up = shard_linear(g, &one, ShardingType::AllToSharded, &Sharding::balanced())?;
        let down = shard_linear(g, &two, ShardingType::ShardedToAll, &Sharding::balanced())?;
        let loss = down.forward(&up.forward(&noise((5, 4), 5))?.relu()?)?.sqr()?.sum_all()?;
        let mut gradients = loss.backward()?;
        let parameters = [up.parameters("up"), down.parameters("down")].concat();
        assert_eq!(variables(&parameters).len(), 4);
        let norm = clip_grad_norm_sharded(g, &parameters, &mut gradients, 0.5)?;
        let again = clip_grad_norm_sharded(g, &parameters, &mut gradients, 0.5)?;
        assert!((again - 0.5).abs() < 1e-4, "{again}");
        let clipped = parameters.iter().map(|p| (p.clone(), gradients.get(&p.tensor).unwrap().clone()));
        Ok((norm, clipped.collect()))
    };
    let (want, whole) = clip(&Group::single()).unwrap();
    for n in 2..=3 {
        on_ranks(n, |g| {
            let (norm, clipped) = clip(g)?;
            assert!((norm / want - 1.0).abs() < 1e-5, "{norm} {want}");
            for ((p, mine), (_, whole)) in clipped.iter().zip(&whole) {
                let want = match &p.part {
                    Some((axis, partition)) => partition.take(whole, *axis, g.rank())?,
                    None => whole.clone(),
                };
                near(mine, &want, 1e-5);
            }
            Ok(())
        });
    }
}
