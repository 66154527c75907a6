//! Layers with quantized weights, beside products with the same weights in f32.

use super::{noise, ranks};
use candle_core::{
    DType, Device, Module, Result as CandleResult, Tensor, Var,
    quantized::{GgmlDType, QStorage, QTensor},
};
use comity_candle::{QuantizedAllToShardedLinear, QuantizedShardedToAllLinear, Result, Sharding};

const WIDTH: usize = 256;

/// Distance of two tensors, against the size of the second.
fn far(a: &Tensor, b: &Tensor) -> f32 {
    let host = |x: &Tensor| x.to_device(&Device::Cpu)?.to_dtype(DType::F32);
    let norm = |x: Tensor| -> CandleResult<f32> { x.sqr()?.sum_all()?.sqrt()?.to_scalar() };
    let b = host(b).unwrap();
    norm((host(a).unwrap() - &b).unwrap()).unwrap() / norm(b).unwrap()
}

#[test]
fn quantized_layers_multiply_as_whole_ones() {
    use GgmlDType::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    let group = ranks();
    let device = comity_candle::device(&group).unwrap();
    // A block of the K types for each rank.
    let inner = 256 * group.size();
    for kind in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K] {
        let quantized = |shape: [usize; 2], seed| -> CandleResult<(QTensor, Tensor)> {
            let q = QTensor::quantize(&noise(&shape, seed), kind)?;
            let whole = q.dequantize(&Device::Cpu)?.to_device(&device)?;
            Ok((QTensor::new(QStorage::from_data(q.data()?, &device, kind)?, &shape[..])?, whole))
        };
        let (up, whole_up) = quantized([inner, WIDTH], 1).unwrap();
        let (down, whole_down) = quantized([WIDTH, inner], 2).unwrap();
        let here = |x: Tensor| x.to_device(&device).unwrap();
        let bias = here(noise(&[WIDTH], 3));
        // One token and many take different kernels.
        for (rows, dtype) in [(1, DType::F32), (48, DType::F32), (1, DType::BF16), (48, DType::BF16)] {
            let x = here(noise(&[rows, WIDTH], 4));
            let onward = here(noise(&[rows, WIDTH], 5));
            let found = || -> Result<(Tensor, Tensor)> {
                let share = Sharding::balanced().unit(kind.block_size());
                let up = QuantizedAllToShardedLinear::from_quantized(&group, &up, None, &share)?;
                let down = QuantizedShardedToAllLinear::from_quantized(&group, &down, Some(&bias), &share)?;
                let x = Var::from_tensor(&x.to_dtype(dtype)?)?;
                let y = down.forward(&up.forward(&x)?)?;
                let loss = (y.to_dtype(DType::F32)? * &onward)?.sum_all()?;
                Ok((y, loss.backward()?.get(&x).unwrap().clone()))
            };
            let name = format!("{kind:?}, {rows} rows of {dtype:?}");
            let (y, gradient) = found().unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(y.device().same_device(&device));
            let want = x.matmul(&whole_up.t().unwrap()).unwrap().matmul(&whole_down.t().unwrap()).unwrap();
            let want = want.broadcast_add(&bias).unwrap();
            // The kernels round the input to eight bits, and its sums to sixteen.
            assert!(far(&y, &want) < 0.05, "{name}: {}", far(&y, &want));
            let want = onward.matmul(&whole_down).unwrap().matmul(&whole_up).unwrap();
            let limit = if dtype == DType::F32 { 1e-3 } else { 0.02 };
            assert!(far(&gradient, &want) < limit, "gradient, {name}: {}", far(&gradient, &want));
        }
    }
    println!("rank {}: ten quantized types, forward and gradient", group.rank());
}
