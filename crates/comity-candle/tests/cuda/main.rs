//! Operations, layers and models on CUDA tensors, which NCCL moves, beside the same on CPU tensors. By hand, on a host with as many GPUs as ranks, one
//! test at a time:
//!
//! ```text
//! cargo test -p comity-candle --features cuda --test cuda --no-run
//! comity launch -n 2 --backend nccl -- target/debug/deps/cuda-... operations
//! comity launch -n 2 --backend nccl -- target/debug/deps/cuda-... quantized
//! comity launch -n 2 --backend nccl -- target/debug/deps/cuda-... gpt
//! comity launch -n 2 --backend nccl -- target/debug/deps/cuda-... llama
//! comity launch -n 2 --backend nccl -- sh -c 'target/debug/deps/cuda-... dies || test $? = 134'
//! ```
#![cfg(feature = "cuda")]

mod gpt;
mod llama;
mod lost;
mod quantized;

use candle_core::{DType, Device, Module, Result as CandleResult, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use comity::Group;
use comity_candle::{
    AllToShardedLinear, Heads, Result, ShardedAttention, ShardedToAllLinear, Sharding, all_gather, all_max,
    all_min, all_sum, all_to_all, average_gradients, broadcast, recv, reduce_scatter, send, sum_gradients,
    time_in_calls,
};
use std::collections::HashMap;

/// Numbers between -1 and 1 that differ from rank to rank.
fn noise(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn near(name: &str, a: &Tensor, b: &Tensor) {
    let host = |x: &Tensor| -> CandleResult<Vec<f32>> {
        x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    };
    assert_eq!(a.dims(), b.dims(), "{name}");
    for (a, b) in host(a).unwrap().iter().zip(host(b).unwrap()) {
        assert!((a - b).abs() < 1e-4, "{name}: {a} on the device, {b} on the host");
    }
}

type Op = fn(&Group, &Tensor) -> Result<Tensor>;

/// A step of training of a model made of layers: its loss and its gradients by name.
fn layers(group: &Group, device: &Device) -> Result<HashMap<String, Tensor>> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
    let share = Sharding::balanced();
    let heads = Heads::new(4, 4, 8, group.size())?;
    let attention = ShardedAttention::new(group, 32, &heads, vb.pp("attention"))?;
    let up = AllToShardedLinear::new(group, 32, 48, true, &share, vb.pp("up"))?;
    let down = ShardedToAllLinear::new(group, 48, 32, true, &share, vb.pp("down"))?;
    for (name, v) in vars.data().lock().unwrap().iter() {
        let own = if name == "down.bias" { 0 } else { group.rank() as u64 };
        let seed = name.bytes().map(u64::from).sum::<u64>() * 8 + own;
        v.set(&(noise(v.dims(), seed) * 0.2)?.to_device(device)?)?;
    }
    let x = noise(&[2, 5, 32], 3).to_device(device)?;
    let (q, k, v) = attention.project(&x)?;
    let x = (attention.attend(&q, &k, &v, None)? + x)?;
    let loss = down.forward(&up.forward(&x)?.relu()?)?.sqr()?.mean_all()?;
    let gradients = loss.backward()?;
    let mut found: HashMap<String, Tensor> = [("loss".to_string(), loss)].into();
    for (name, v) in vars.data().lock().unwrap().iter() {
        found.insert(name.clone(), gradients.get(v).unwrap().clone());
    }
    Ok(found)
}

/// The group of the launcher, over NCCL.
fn ranks() -> Group {
    let group = comity::init().unwrap();
    assert!(
        group.size() > 1 && group.device().is_some(),
        "start this with `comity launch -n 2 --backend nccl`"
    );
    group
}

#[test]
fn operations_do_as_on_cpu_tensors() {
    let group = ranks();
    let ordinal = group.device().unwrap() as usize;
    let rank = group.rank() as u64;
    let n = group.size();
    let ops: [(&str, Op); 10] = [
        ("all_sum", all_sum),
        ("all_max", all_max),
        ("all_min", all_min),
        ("all_gather", |g, x| all_gather(g, x, 0)),
        ("all_gather along 1", |g, x| all_gather(g, x, 1)),
        ("reduce_scatter", |g, x| reduce_scatter(g, x, 0)),
        ("all_to_all along 1", |g, x| all_to_all(g, x, 1)),
        ("broadcast", |g, x| broadcast(g, x, 1)),
        ("sum_gradients", sum_gradients),
        ("sum_gradients of a part", |g, x| sum_gradients(g, &x.narrow(1, 1, 2)?)),
    ];
    for device in [Device::new_cuda(ordinal).unwrap(), Device::new_cuda_with_stream(ordinal).unwrap()] {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            for (name, op) in ops {
                let name = format!("{name} of {dtype:?}");
                let of = |device: &Device| -> Result<(Tensor, Tensor)> {
                    let x = noise(&[2 * n, 3 * n], rank + 1).to_dtype(dtype)?.to_device(device)?;
                    let x = Var::from_tensor(&x)?;
                    let y = op(&group, x.as_tensor())?;
                    assert!(y.device().same_device(device));
                    let weights = noise(y.dims(), 7 + rank).to_dtype(dtype)?.to_device(device)?;
                    let loss = (&y * weights)?.sum_all()?;
                    Ok((y, loss.backward()?.get(&x).unwrap().clone()))
                };
                let want = of(&Device::Cpu).unwrap();
                let found = of(&device).unwrap();
                near(&name, &found.0, &want.0);
                near(&format!("gradient of {name}"), &found.1, &want.1);
            }
        }
        pairs(&group, &device).unwrap();
        let want = layers(&group, &Device::Cpu).unwrap();
        for (name, found) in layers(&group, &device).unwrap() {
            near(&name, &found, &want[&name]);
        }
        averages(&group, &device).unwrap();
    }
    assert!(time_in_calls().as_nanos() > 0);
    println!(
        "rank {rank}: operations, layers and averages on two streams of CUDA device {ordinal}: as on the CPU"
    );
}

/// A tensor that goes from rank 0 to rank 1, and its gradient that comes back.
fn pairs(group: &Group, device: &Device) -> Result<()> {
    let x = noise(&[3, 2], 5).to_device(device)?;
    match group.rank() {
        0 => {
            let x = Var::from_tensor(&x)?;
            let gradients = send(group, &(x.as_tensor() * 3.0)?, 1, 4)?.backward()?;
            near("gradient of send", gradients.get(&x).unwrap(), &(noise(&[3, 2], 6) * 3.0)?);
        }
        1 => {
            let y = recv(group, (3, 2), DType::F32, device, 0, 4)?;
            near("recv", &y, &(x * 3.0)?);
            (y * noise(&[3, 2], 6).to_device(device)?)?.sum_all()?.backward()?;
        }
        _ => {}
    }
    Ok(())
}

fn averages(group: &Group, device: &Device) -> Result<()> {
    let rank = group.rank() as u64;
    let of = |device: &Device| -> Result<Vec<Tensor>> {
        let vars = [
            Var::from_tensor(&noise(&[4, 3], 1).to_device(device)?)?,
            Var::from_tensor(&noise(&[7], 2).to_device(device)?)?,
        ];
        let mine = noise(&[4, 3], 20 + rank).to_device(device)?;
        let loss = (vars[0].as_tensor() * mine)?.sum_all()?;
        let loss = (loss + (vars[1].as_tensor() * (rank as f64 + 1.0))?.sum_all()?)?;
        let mut gradients = loss.backward()?;
        average_gradients(group, &vars, &mut gradients)?;
        Ok(vars.iter().map(|v| gradients.get(v).unwrap().clone()).collect())
    };
    for (found, want) in of(device)?.iter().zip(of(&Device::Cpu)?) {
        near("average", found, &want);
    }
    Ok(())
}
