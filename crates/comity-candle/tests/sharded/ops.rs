//! Values and gradients of the operations, by their definition.

use super::{near, noise, on_ranks, variable};
use candle_core::{DType, Device, Tensor};
use comity_candle::{
    all_gather, all_gather_v, all_max, all_min, all_sum, all_to_all, broadcast, recv, reduce_scatter_v, send,
    sum_gradients,
};

#[test]
fn a_sum_passes_its_gradient_on() {
    for n in 1..=4 {
        let c = noise((2, 3), 99);
        let whole = (1..n).fold(noise((2, 3), 0), |sum, r| (sum + noise((2, 3), r as u64)).unwrap());
        on_ranks(n, |g| {
            let x = variable(&noise((2, 3), g.rank() as u64));
            let y = all_sum(g, &x)?;
            near(&y, &whole, 1e-6);
            let gradients = (y * &c)?.sum_all()?.backward()?;
            near(gradients.get(&x).unwrap(), &c, 0.0);
            Ok(())
        });
    }
}

#[test]
fn gathered_rows_get_their_part_of_the_gradient() {
    for n in 1..=4 {
        let sizes: Vec<usize> = (1..=n).collect();
        let total = sizes.iter().sum();
        let whole = noise((2, total, 2), 1);
        let c = noise((2, total, 2), 2);
        on_ranks(n, |g| {
            let start = sizes[..g.rank()].iter().sum();
            let mine = |x: &Tensor| x.narrow(1, start, sizes[g.rank()]);
            let x = variable(&mine(&whole)?);
            let y = all_gather_v(g, &x, 1, &sizes)?;
            near(&y, &whole, 0.0);
            let gradients = (y * &c)?.sum_all()?.backward()?;
            near(gradients.get(&x).unwrap(), &mine(&c)?, 0.0);
            assert_eq!(all_gather(g, &noise((2, 3), 0), 0)?.dims(), [2 * n, 3]);
            Ok(())
        });
    }
}

#[test]
fn scattered_sums_gather_their_gradients() {
    for n in 1..=4 {
        let sizes: Vec<usize> = (1..=n).rev().collect();
        let total = sizes.iter().sum();
        let whole = (1..n).fold(noise((2, total), 0), |sum, r| (sum + noise((2, total), r as u64)).unwrap());
        let c = noise((2, total), 50);
        on_ranks(n, |g| {
            let start = sizes[..g.rank()].iter().sum();
            let mine = |x: &Tensor| x.narrow(1, start, sizes[g.rank()]);
            let x = variable(&noise((2, total), g.rank() as u64));
            let y = reduce_scatter_v(g, &x, 1, &sizes)?;
            near(&y, &mine(&whole)?, 1e-6);
            let loss = all_sum(g, &(y * mine(&c)?)?.sum_all()?)?;
            near(loss.backward()?.get(&x).unwrap(), &c, 0.0);
            Ok(())
        });
    }
}

#[test]
fn parts_sent_to_all_send_their_gradients_back() {
    for n in 1..=4 {
        on_ranks(n, |g| {
            let r = g.rank();
            let of = |rank: usize, seed: u64| noise((3, 2 * n), seed + rank as u64);
            let x = variable(&of(r, 0));
            let y = all_to_all(g, &x, 1)?;
            // Part s of y is part r of rank s.
            let part = |x: &Tensor, i: usize| x.narrow(1, 2 * i, 2);
            for s in 0..n {
                near(&part(&y, s)?, &part(&of(s, 0), r)?, 0.0);
            }
            let loss = all_sum(g, &(y * of(r, 10))?.sum_all()?)?;
            let gradients = loss.backward()?;
            for s in 0..n {
                near(&part(gradients.get(&x).unwrap(), s)?, &part(&of(s, 10), r)?, 0.0);
            }
            Ok(())
        });
    }
}

#[test]
fn the_root_of_a_broadcast_has_the_gradient() {
    for n in 1..=3 {
        on_ranks(n, |g| {
            let root = n - 1;
            let c = noise(4, 9);
            let x = variable(&noise(4, g.rank() as u64));
            let y = broadcast(g, &x, root)?;
            near(&y, &noise(4, root as u64), 0.0);
            let gradients = (y * &c)?.sum_all()?.backward()?;
            let want = if g.rank() == root { c } else { c.zeros_like()? };
            near(gradients.get(&x).unwrap(), &want, 0.0);
            Ok(())
        });
    }
}

#[test]
fn extremes_give_their_gradient_to_who_has_them() {
    on_ranks(3, |g| {
        let d = &Device::Cpu;
        let of = [[1f32, 5.0, 2.0], [4.0, 5.0, 2.0], [0.0, 1.0, 2.0]];
        let x = variable(&Tensor::new(&of[g.rank()], d)?);
        let most = all_max(g, &x)?;
        let least = all_min(g, &x)?;
        assert_eq!(most.to_vec1::<f32>()?, [4.0, 5.0, 2.0]);
        assert_eq!(least.to_vec1::<f32>()?, [0.0, 1.0, 2.0]);
        let c = Tensor::new(&[6f32, 6.0, 6.0], d)?;
        let most = (most * &c)?.sum_all()?.backward()?;
        let want = [[0f32, 3.0, 2.0], [6.0, 3.0, 2.0], [0.0, 0.0, 2.0]];
        near(most.get(&x).unwrap(), &Tensor::new(&want[g.rank()], d)?, 1e-6);
        let least = (least * &c)?.sum_all()?.backward()?;
        let want = [[0f32, 0.0, 2.0], [0.0, 0.0, 2.0], [6.0, 6.0, 2.0]];
        near(least.get(&x).unwrap(), &Tensor::new(&want[g.rank()], d)?, 1e-6);
        Ok(())
    });
}

#[test]
fn a_gradient_travels_back_through_a_chain_of_ranks() {
    // w0 on rank 0, w1 on rank 1, ...: y = w0 * w1 * ... * w(n-1) on the last rank.
    for n in 2..=4 {
        on_ranks(n, |g| {
            let r = g.rank();
            let d = &Device::Cpu;
            let w = variable(&Tensor::new(&[r as f32 + 2.0, 1.0], d)?);
            let x = match r {
                0 => w.as_tensor().clone(),
                _ => (recv(g, 2, DType::F32, d, r - 1, 7)? * w.as_tensor())?,
            };
            let loss = if r + 1 < n { send(g, &x, r + 1, 7)? } else { x.sum_all()? };
            let gradients = loss.backward()?;
            let others: f32 = (0..n).filter(|&i| i != r).map(|i| i as f32 + 2.0).product();
            assert_eq!(gradients.get(&w).unwrap().to_vec1::<f32>()?, [others, 1.0]);
            Ok(())
        });
    }
}

#[test]
fn every_type_of_candle_travels() {
    use DType::{BF16, F16, F32, F64, I16, I32, I64, U8, U32};
    on_ranks(2, |g| {
        for dtype in [U8, U32, I16, I32, I64, BF16, F16, F32, F64] {
            let x = Tensor::ones((2, 2), dtype, &Device::Cpu)?;
            let sum = all_sum(g, &x.t()?)?;
            assert_eq!(sum.dtype(), dtype);
            near(&sum, &Tensor::full(2f32, (2, 2), &Device::Cpu)?, 0.0);
        }
        Ok(())
    });
}

#[test]
fn gradients_of_a_shared_input_are_summed() {
    on_ranks(3, |g| {
        let x = variable(&noise(3, 0));
        let mine = noise(3, 20 + g.rank() as u64);
        let y = (sum_gradients(g, &x)? * &mine)?.sum_all()?;
        let gradients = all_sum(g, &y)?.backward()?;
        let all = ((noise(3, 20) + noise(3, 21))? + noise(3, 22))?;
        near(gradients.get(&x).unwrap(), &all, 1e-6);
        Ok(())
    });
}
