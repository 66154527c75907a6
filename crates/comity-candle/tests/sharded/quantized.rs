//! Pairs of quantized layers, against the same pair on one rank.

use super::{near, noise, on_ranks, variable};
use candle_core::{
    DType, Device, Module, Tensor,
    quantized::{GgmlDType, QMatMul, QTensor},
};
use candle_nn::Linear;
use comity_candle::{
    AllToShardedLinear, Error, QuantizedAllToShardedLinear, QuantizedShardedToAllLinear, ShardedToAllLinear,
    Sharding, ShardingCause,
};
use std::sync::Arc;

fn compare(n: usize, dtype: GgmlDType, inputs: usize, hidden: usize, activations: DType, far: f32) {
    let quantize = |shape: (usize, usize), seed| {
        Arc::new(QTensor::quantize(&(noise(shape, seed) * 0.1).unwrap(), dtype).unwrap())
    };
    let one = quantize((hidden, inputs), 1);
    let two = quantize((5, hidden), 2);
    let b1 = noise(hidden, 3);
    let b2 = noise(5, 4);
    let x0 = noise((1, 2, inputs), 5).to_dtype(activations).unwrap();
    let c = noise((1, 2, 5), 6);

    // Forward against candle's product of quantized weights, backward against that of the same weights dequantized.
    let product = |q: &Arc<QTensor>, x: &Tensor| QMatMul::from_arc(q.clone()).unwrap().forward(x).unwrap();
    let add = |x: Tensor, b: &Tensor| x.broadcast_add(&b.to_dtype(x.dtype()).unwrap()).unwrap();
    let h = add(product(&one, &x0), &b1).relu().unwrap();
    let want = add(product(&two, &h), &b2);
    let x = variable(&x0.to_dtype(DType::F32).unwrap());
    let linear = |q: &QTensor, b: &Tensor| Linear::new(q.dequantize(&Device::Cpu).unwrap(), Some(b.clone()));
    let h = linear(&one, &b1).forward(&x).unwrap().relu().unwrap();
    let loss = (linear(&two, &b2).forward(&h).unwrap() * &c).unwrap().sum_all().unwrap();
    let gradient = loss.backward().unwrap().get(&x).unwrap().clone();
    let one = &*one;
    let two = &*two;
    on_ranks(n, |g| {
        let sharding = Sharding::balanced().unit(dtype.block_size());
        let up = QuantizedAllToShardedLinear::from_quantized(g, one, Some(&b1), &sharding)?;
        let down = QuantizedShardedToAllLinear::from_quantized(g, two, Some(&b2), &sharding)?;
        let mine = variable(&x0);
        let y = down.forward(&up.forward(&mine)?.relu()?)?;
        assert_eq!(y.dtype(), activations);
        near(&y, &want, far);
        let gradients = (y.to_dtype(DType::F32)? * &c)?.sum_all()?.backward()?;
        near(gradients.get(&mine).unwrap(), &gradient, far);
        // Each part is the part of the whole, bit by bit.
        let rows = up.outputs().take(&one.dequantize(&Device::Cpu)?, 0, g.rank())?;
        near(&up.weight().dequantize(&Device::Cpu)?, &rows, 0.0);
        let columns = down.inputs().take(&two.dequantize(&Device::Cpu)?, 1, g.rank())?;
        near(&down.weight().dequantize(&Device::Cpu)?, &columns, 0.0);
        Ok(())
    });
}

#[test]
fn blocks_are_divided_whole() {
    for n in 1..=4 {
        compare(n, GgmlDType::Q8_0, 32, 5 * 32, DType::F32, 0.05);
        compare(n, GgmlDType::Q8_0, 32, 4 * 32, DType::BF16, 0.1);
    }
    compare(3, GgmlDType::Q4_0, 32, 3 * 32, DType::F32, 0.05);
    compare(2, GgmlDType::Q4K, 256, 2 * 256, DType::F32, 0.15);
}

#[test]
fn a_sharded_layer_is_quantized_in_its_place() {
    on_ranks(2, |g| {
        let sharding = Sharding::even().unit(32);
        let up = Linear::new(noise((64, 32), 1), Some(noise(64, 2)));
        let down = Linear::new(noise((4, 64), 3), None);
        let up = AllToShardedLinear::from_linear(g, &up, &sharding)?;
        let down = ShardedToAllLinear::from_linear(g, &down, &sharding)?;
        let x = noise((3, 32), 4);
        let want = down.forward(&up.forward(&x)?)?;
        let up = up.quantize(GgmlDType::Q8_0)?;
        let down = down.quantize(GgmlDType::Q8_0)?;
        near(&down.forward(&up.forward(&x)?)?, &want, 0.5);
        Ok(())
    });
}

#[test]
fn misaligned_blocks_are_refused_with_what_works() {
    on_ranks(3, |g| {
        let q = QTensor::quantize(&noise((8, 512), 1), GgmlDType::Q4K)?;
        let e = QuantizedShardedToAllLinear::from_quantized(g, &q, None, &Sharding::balanced()).unwrap_err();
        let Error::Sharding(e) = &e else { panic!("{e}") };
        assert_eq!(e.cause, ShardingCause::TooManyRanks { units: 2, unit: 256 });
        assert!(e.to_string().contains("the input of 512") && e.to_string().contains("up to 2 ranks"), "{e}");
        let e = QuantizedShardedToAllLinear::from_quantized(g, &q, None, &Sharding::even()).unwrap_err();
        assert!(e.to_string().contains("in whole units of 256; 768 can"), "{e}");
        Ok(())
    });
}

#[test]
fn layers_without_whole_blocks_are_not_quantized() {
    on_ranks(2, |g| {
        // Shares of 48 where whole blocks have 32: both ranks are told, and which shares would do.
        let down = Linear::new(noise((4, 96), 1), None);
        let balanced = ShardedToAllLinear::from_linear(g, &down, &Sharding::balanced())?;
        let Err(Error::Sharding(e)) = balanced.quantize(GgmlDType::Q8_0) else { panic!("no error") };
        assert_eq!(e.cause, ShardingCause::Misaligned { sizes: vec![48, 48], unit: 32 });
        assert_eq!(
            e.to_string(),
            "ShardedToAllLinear: the input has [48, 48] elements on the 2 ranks, and each needs a multiple of 32; \
             share it in units of 32"
        );
        ShardedToAllLinear::from_linear(g, &down, &Sharding::balanced().unit(32))?
            .quantize(GgmlDType::Q8_0)?;
        let up = Linear::new(noise((4, 40), 1), None);
        let up = AllToShardedLinear::from_linear(g, &up, &Sharding::balanced())?;
        let Err(Error::Sharding(e)) = up.quantize(GgmlDType::Q8_0) else { panic!("no error") };
        assert_eq!(e.cause, ShardingCause::Misaligned { sizes: vec![40, 40], unit: 32 });
        Ok(())
    });
}

#[test]
fn quantized_parts_of_other_shapes_are_named() {
    on_ranks(2, |g| {
        let weight = || QTensor::quantize(&noise((64, 64), 1), GgmlDType::Q8_0);
        let parts = Sharding::balanced().unit(32).partition(64, 2)?;
        let shape = |r: comity_candle::Result<()>| match r {
            Err(Error::Sharding(e)) => (e.layer, e.dimension, e.cause),
            other => panic!("{other:?}"),
        };
        let expect = |dimension: &str, expected: &[usize], got: &[usize]| {
            let cause = ShardingCause::Shape { expected: expected.to_vec(), got: got.to_vec() };
            ("up".to_string(), dimension.to_string(), cause)
        };
        let up = QuantizedAllToShardedLinear::from_parts(g, "up", weight()?, None, parts.clone());
        assert_eq!(shape(up.map(|_| ())), expect("weight", &[32, 64], &[64, 64]));
        let down = QuantizedShardedToAllLinear::from_parts(g, "up", weight()?, None, parts);
        assert_eq!(shape(down.map(|_| ())), expect("weight", &[64, 32], &[64, 64]));
        let sharding = Sharding::balanced().unit(32);
        let short = noise(50, 2);
        let up = QuantizedAllToShardedLinear::from_quantized(g, &weight()?, Some(&short), &sharding);
        let (layer, dimension, _) = shape(up.map(|_| ()));
        assert_eq!((&*layer, &*dimension), ("QuantizedAllToShardedLinear", "bias"));
        let up = QuantizedAllToShardedLinear::from_quantized(g, &weight()?, None, &sharding)?;
        let forward = || -> comity_candle::Result<Tensor> { Ok(up.forward(&noise((1, 32), 3))?) };
        let (_, dimension, cause) = shape(forward().map(|_| ()));
        assert_eq!((&*dimension, cause), ("input", expect("", &[1, 64], &[1, 32]).2));
        Ok(())
    });
}
