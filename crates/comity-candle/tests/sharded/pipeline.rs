//! Pipelines in both orders, against the whole model on one rank.

use super::{near, noise, on_ranks, variable};
use candle_core::{CpuStorage, CustomOp1, Layout, Module, Shape, Tensor, backend::BackendStorage};
use candle_nn::Linear;
use comity::ReduceOp;
use comity_candle::{
    AllToShardedLinear, DeviceMesh, Error, Parameter, Passes, Pipeline, Result, ShardedToAllLinear, Sharding,
    ShardingCause, average_gradients, divide_layers, variables,
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

const LAYERS: usize = 5;
const WIDTH: usize = 6;

fn layers() -> Vec<Linear> {
    let v = |x: Tensor| variable(&x).into_inner();
    (0..LAYERS as u64)
        .map(|i| Linear::new(v(noise((WIDTH, WIDTH), i)), Some(v(noise(WIDTH, 50 + i)))))
        .collect()
}

fn compute(layers: &[Linear], x: &Tensor) -> candle_core::Result<Tensor> {
    layers.iter().try_fold(x.clone(), |x, l| l.forward(&x)?.tanh())
}

/// An identity that counts the graphs that hold it.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>, most: &AtomicUsize) -> Self {
        most.fetch_max(count.fetch_add(1, SeqCst) + 1, SeqCst);
        Self(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl CustomOp1 for Alive {
    fn name(&self) -> &'static str {
        "alive"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((x.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(gradient.clone()))
    }
}

#[test]
fn stages_learn_what_the_whole_model_learns() {
    for (micro, passes) in
        [(1, Passes::default()), (5, Passes::OneForwardOneBackward), (5, Passes::AllForwardFirst)]
    {
        // Micro-batches of different lengths: what travels says its shape.
        let batches: Vec<Tensor> = (0..micro).map(|i| noise((2 + i % 2, WIDTH), 90 + i as u64)).collect();
        let whole = layers();
        let losses: Vec<Tensor> =
            batches.iter().map(|x| compute(&whole, x).unwrap().sqr().unwrap().mean_all().unwrap()).collect();
        let want = Tensor::stack(&losses, 0).unwrap().mean_all().unwrap();
        let all = want.backward().unwrap();
        let want = f64::from(want.to_scalar::<f32>().unwrap());
        let whole = &whole;
        for n in 1..=4 {
            on_ranks(n, |g| {
                let range = divide_layers(&[1; LAYERS], n)?[g.rank()].clone();
                let mine = layers();
                let count = Arc::new(AtomicUsize::new(0));
                let most = AtomicUsize::new(0);
                let mut pipeline = Pipeline::new(g, passes)?;
                let (loss, gradients) = pipeline.run(&batches, |input, batch| {
                    let x = compute(&mine[range.clone()], &input.unwrap_or_else(|| batch.clone()))?;
                    let x = x.apply_op1(Alive::new(&count, &most))?;
                    Ok(if g.rank() + 1 < n { x } else { x.sqr()?.mean_all()? })
                })?;
                assert!((loss - want).abs() < 1e-6, "{loss} {want}");
                for i in range {
                    near(gradients.get(mine[i].weight()).unwrap(), all.get(whole[i].weight()).unwrap(), 1e-5);
                    near(
                        gradients.get(mine[i].bias().unwrap()).unwrap(),
                        all.get(whole[i].bias().unwrap()).unwrap(),
                        1e-5,
                    );
                }
                let held = if passes == Passes::AllForwardFirst { micro } else { micro.min(n - g.rank()) };
                assert_eq!(most.load(SeqCst), held, "stage {} of {n}, {passes:?}", g.rank());
                Ok(())
            });
        }
    }
}

#[test]
fn a_grid_of_stages_and_shares_learns_the_same() {
    let batches: Vec<Tensor> = (0..4).map(|i| noise((2, WIDTH), 90 + i)).collect();
    let whole = layers();
    let losses: Vec<Tensor> =
        batches.iter().map(|x| compute(&whole, x).unwrap().sqr().unwrap().mean_all().unwrap()).collect();
    let all = Tensor::stack(&losses, 0).unwrap().mean_all().unwrap().backward().unwrap();
    let whole = &whole;
    on_ranks(4, |g| {
        let mesh = DeviceMesh::new(g, &[("data", 2), ("pipeline", 2)])?;
        let data = mesh.group("data")?;
        let stages = mesh.group("pipeline")?;
        let range = divide_layers(&[1; LAYERS], 2)?[stages.rank()].clone();
        let mine = layers();
        let share = &batches[2 * data.rank()..][..2];
        let (_, mut gradients) = Pipeline::new(stages, Passes::default())?.run(share, |input, batch| {
            let x = compute(&mine[range.clone()], &input.unwrap_or_else(|| batch.clone()))?;
            Ok(if stages.rank() == 0 { x } else { x.sqr()?.mean_all()? })
        })?;
        let variables: Vec<_> = mine[range.clone()]
            .iter()
            .map(|l| candle_core::Var::from_tensor(l.weight()))
            .collect::<candle_core::Result<_>>()?;
        average_gradients(data, &variables, &mut gradients)?;
        for i in range {
            near(gradients.get(mine[i].weight()).unwrap(), all.get(whole[i].weight()).unwrap(), 1e-5);
        }
        Ok(())
    });
}

const PAIRS: usize = 3;

/// Pairs of layers with variables.
fn pairs() -> Vec<[Linear; 2]> {
    const HIDDEN: usize = 5;
    (0..PAIRS as u64)
        .map(|i| {
            let v = |shape: (usize, usize), seed| variable(&noise(shape, 10 * i + seed)).into_inner();
            let b = |n: usize, seed| Some(variable(&noise(n, 10 * i + seed)).into_inner());
            [
                Linear::new(v((HIDDEN, WIDTH), 1), b(HIDDEN, 2)),
                Linear::new(v((WIDTH, HIDDEN), 3), b(WIDTH, 4)),
            ]
        })
        .collect()
}

/// The loss of pairs, each added to its input.
fn loss_of_pairs(pairs: &[[Linear; 2]], x: &Tensor) -> candle_core::Result<Tensor> {
    let mut x = x.clone();
    for [up, down] in pairs {
        x = (down.forward(&up.forward(&x)?.tanh()?)? + x)?;
    }
    x.sqr()?.mean_all()
}

#[test]
fn shares_stages_and_parts_of_layers_together_learn_the_same() {
    let whole = pairs();
    let batches: Vec<Tensor> = (0..4).map(|i| noise((2, WIDTH), 90 + i)).collect();
    let losses: Vec<Tensor> = batches.iter().map(|x| loss_of_pairs(&whole, x).unwrap()).collect();
    let want = Tensor::stack(&losses, 0).unwrap().mean_all().unwrap();
    let all = want.backward().unwrap();
    let want = f64::from(want.to_scalar::<f32>().unwrap());
    let whole = &whole;
    on_ranks(8, |g| {
        let mesh = DeviceMesh::new(g, &[("data", 2), ("pipeline", 2), ("tensor", 2)])?;
        let data = mesh.group("data")?;
        let stages = mesh.group("pipeline")?;
        let tensor = mesh.group("tensor")?;
        let share = Sharding::balanced();
        let range = divide_layers(&[1; PAIRS], 2)?[stages.rank()].clone();
        let mine: Vec<_> = whole[range]
            .iter()
            .map(|[up, down]| {
                let sharded_up = AllToShardedLinear::from_linear(tensor, up, &share)?;
                let sharded_down = ShardedToAllLinear::from_linear(tensor, down, &share)?;
                Ok((sharded_up, sharded_down, [up, down]))
            })
            .collect::<Result<_>>()?;
        let batches = &batches[2 * data.rank()..][..2];
        let (loss, mut gradients) =
            Pipeline::new(stages, Passes::default())?.run(batches, |input, batch| {
                let mut x = input.unwrap_or_else(|| batch.clone());
                for (up, down, _) in &mine {
                    x = (down.forward(&up.forward(&x)?.tanh()?)? + x)?;
                }
                Ok(if stages.rank() == 0 { x } else { x.sqr()?.mean_all()? })
            })?;
        let mut loss = [loss];
        data.all_reduce(&mut loss, ReduceOp::Avg)?;
        assert!((loss[0] - want).abs() < 1e-6, "{loss:?} {want}");
        let parameters: Vec<Parameter> = mine
            .iter()
            .flat_map(|(up, down, _)| [up.parameters("up"), down.parameters("down")].concat())
            .collect();
        average_gradients(data, &variables(&parameters), &mut gradients)?;
        let wholes = mine.iter().flat_map(|(_, _, [up, down])| {
            [up.weight(), up.bias().unwrap(), down.weight(), down.bias().unwrap()]
        });
        for (p, w) in parameters.iter().zip(wholes) {
            let want = all.get(w).unwrap();
            let want = match &p.part {
                Some((axis, partition)) => partition.take(want, *axis, tensor.rank())?,
                None => want.clone(),
            };
            near(gradients.get(&p.tensor).unwrap(), &want, 1e-5);
        }
        assert_eq!(parameters.len(), [8, 4][stages.rank()]);
        Ok(())
    });
}

#[test]
fn grids_and_stages_that_do_not_fit_are_refused() {
    on_ranks(3, |g| {
        let Err(Error::Sharding(e)) = DeviceMesh::new(g, &[("data", 2), ("tensor", 2)]) else {
            panic!("no error")
        };
        assert_eq!(e.cause, ShardingCause::Ranks { made_for: 4 });
        assert_eq!(e.to_string(), "the mesh of data 2 x tensor 2 is for 4 ranks, and there are 3");
        let mesh = DeviceMesh::new(g, &[("tensor", 3)])?;
        let e = mesh.group("data").unwrap_err().to_string();
        assert_eq!(e, "data: there is no such axis; there are tensor");
        Ok(())
    });
    let e = divide_layers(&[1, 1], 3).unwrap_err().to_string();
    assert_eq!(e, "the layers of 2 cannot be shared by 3 ranks: there are 2; run on up to 2 ranks");
    assert_eq!(divide_layers(&[5, 1, 1, 1, 1, 1], 2).unwrap(), [0..1, 1..6]);
    assert_eq!(divide_layers(&[1, 1, 1, 9], 4).unwrap(), [0..1, 1..2, 2..3, 3..4]);
    assert_eq!(divide_layers(&[9, 0, 0, 0], 3).unwrap(), [0..2, 2..3, 3..4]);
}
