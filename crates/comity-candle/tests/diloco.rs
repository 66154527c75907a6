//! Training with outer steps, on ranks that are threads: as good as data parallel training, also where a rank leaves and another joins.

use candle_core::{Device, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, loss, ops};
use comity::{Config, Group, Key, tools::Store};
use comity_candle::{DiLoCo, OuterSteps, sync_variables};
use demo::{Digits, LAYERS, Options, PIXELS, Random};
use std::{thread, time::Duration};

const LIMIT: Duration = Duration::from_secs(60);
const STEPS: usize = 100;
const BATCH: usize = 32;
/// Share of the samples by which the result may differ from that of plain data parallel training.
const TOLERANCE: f32 = 0.03;

fn network(seed: u64) -> Vec<Var> {
    let mut random = Random::new(seed);
    let layer = |(inputs, outputs): (usize, usize)| {
        let scale = (3.0 / inputs as f32).sqrt();
        let weight: Vec<f32> = (0..inputs * outputs).map(|_| random.uniform() * scale).collect();
        let bias = Var::from_vec(vec![0f32; outputs], outputs, &Device::Cpu).unwrap();
        [Var::from_vec(weight, (inputs, outputs), &Device::Cpu).unwrap(), bias]
    };
    LAYERS.into_iter().flat_map(layer).collect()
}

fn forward(network: &[Var], digits: &Digits, samples: &[usize]) -> (Tensor, Vec<u8>) {
    let (pixels, labels) = digits.batch(samples);
    let x = Tensor::from_vec(pixels, (samples.len(), PIXELS), &Device::Cpu).unwrap();
    let hidden = x.matmul(&network[0]).unwrap().broadcast_add(&network[1]).unwrap().relu().unwrap();
    (hidden.matmul(&network[2]).unwrap().broadcast_add(&network[3]).unwrap(), labels)
}

/// A rank's optimiser, and the order of its samples.
struct Training {
    network: Vec<Var>,
    adam: AdamW,
    random: Random,
}

impl Training {
    fn new(seed: u64) -> Self {
        let network = network(seed);
        let adam = AdamW::new(network.clone(), ParamsAdamW { lr: 3e-3, ..Default::default() }).unwrap();
        Self { network, adam, random: Random::new(seed + 100) }
    }

    fn step(&mut self, digits: &Digits, batch: usize) {
        let n = digits.train.len();
        let mut one = || digits.train[((self.random.uniform() + 1.0) / 2.0 * n as f32) as usize % n];
        let samples: Vec<usize> = (0..batch).map(|_| one()).collect();
        let (scores, labels) = forward(&self.network, digits, &samples);
        let labels: Vec<u32> = labels.into_iter().map(u32::from).collect();
        let labels = Tensor::new(labels, &Device::Cpu).unwrap();
        let loss = loss::nll(&ops::log_softmax(&scores, 1).unwrap(), &labels).unwrap();
        self.adam.backward_step(&loss).unwrap();
    }

    fn accuracy(&self, digits: &Digits) -> f32 {
        let (scores, labels) = forward(&self.network, digits, &digits.held_out);
        let best = scores.argmax(1).unwrap().to_vec1::<u32>().unwrap();
        let right = best.iter().zip(&labels).filter(|(a, b)| **a == u32::from(**b)).count();
        right as f32 / labels.len() as f32
    }
}

fn key() -> Key {
    Key::from([7; 32])
}

/// A rank: it leaves after so many outer steps, or trains to the end.
fn train(
    group: Group,
    seed: u64,
    joins: bool,
    leaves: usize,
    digits: &Digits,
) -> Option<(usize, f32, Vec<f32>)> {
    let mut training = Training::new(seed);
    let steps = OuterSteps { every: 20, fragments: 2, ..OuterSteps::default() };
    let mut diloco = DiLoCo::new(group, &training.network, steps, !joins).unwrap();
    while diloco.outer_steps() < STEPS / 10 {
        training.step(digits, BATCH);
        diloco.step().unwrap();
        if diloco.outer_steps() == leaves {
            return None;
        }
        // The others do not end before it has come.
        while diloco.group().size() == 2 && diloco.group().joiners() == 0 {
            thread::sleep(Duration::from_millis(2));
        }
    }
    diloco.settle().unwrap();
    diloco.group().barrier().unwrap();
    let weights = training.network.iter().flat_map(|v| v.flatten_all().unwrap().to_vec1::<f32>().unwrap());
    Some((diloco.group().size(), training.accuracy(digits), weights.collect()))
}

#[test]
fn outer_steps_learn_like_data_parallel_training_and_survive_a_lost_rank() {
    let digits = &Digits::read(&Options::default().data).unwrap();
    let mut together = Training::new(1);
    (0..STEPS).for_each(|_| together.step(digits, 3 * BATCH));
    let plain = together.accuracy(digits);
    let store = Store::start("127.0.0.1:0".parse().unwrap(), 3, &key(), "diloco", LIMIT).unwrap();
    let at = &store.addr().to_string();
    let config = |config: Config| config.store(at).unwrap().job("diloco").key(key()).join_timeout(LIMIT);
    let ends = scope::each(0..4u64, |rank| {
        let joins = rank == 3;
        let config = config(if joins { Config::joiner() } else { Config::new(rank as usize, 3) });
        let leaves = if rank == 1 { 5 } else { usize::MAX };
        train(config.connect().unwrap(), rank, joins, leaves, digits)
    });
    let ends: Vec<_> = ends.into_iter().flatten().collect();
    assert_eq!(ends.len(), 3);
    assert!(ends.iter().all(|end| *end == ends[0]), "they end apart");
    let accuracy = ends[0].1;
    assert!(plain > 0.9 && accuracy > plain - TOLERANCE, "{accuracy}, and {plain} together");
}

#[test]
fn who_lacks_variables_gets_them() {
    scope::each(Group::local(2).unwrap(), |group| {
        let holds = group.rank() == 1;
        let mark = if holds { 2.5f32 } else { 0.0 };
        let x = Var::from_tensor(&Tensor::full(mark, 100, &Device::Cpu).unwrap()).unwrap();
        let half = x.to_dtype(candle_core::DType::BF16).unwrap();
        let half = Var::from_tensor(&half).unwrap();
        let received = sync_variables(&group, [&x, &half], holds).unwrap();
        assert_eq!(received, if holds { 0 } else { 600 });
        assert_eq!(x.to_vec1::<f32>().unwrap(), [2.5; 100]);
        assert_eq!(half.to_dtype(candle_core::DType::F32).unwrap().to_vec1::<f32>().unwrap(), [2.5; 100]);
    });
}
