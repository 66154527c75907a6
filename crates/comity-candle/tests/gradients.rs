//! Averages over ranks that are threads, against values computed by hand.

use candle_core::{DType, Device, Tensor, Var, backprop::GradStore};
use comity::{Group, ReduceOp, Wire};
use comity_candle::{Error, average_gradients};
use std::time::Duration;

fn run<T: Send>(n: usize, f: impl Fn(Group) -> T + Sync) -> Vec<T> {
    scope::each(Group::local(n).unwrap(), |g| f(g.with_timeout(Duration::from_secs(20))))
}

fn var(count: usize, dtype: DType) -> Var {
    Var::from_tensor(&Tensor::zeros(count, dtype, &Device::Cpu).unwrap()).unwrap()
}

/// A store in which variable `i` has the gradient `of(i)`, in all elements.
fn store(variables: &[Var], of: impl Fn(usize) -> Option<f64>) -> GradStore {
    let mut store = variables[0].zeros_like().unwrap().sum_all().unwrap().backward().unwrap();
    store.remove(&variables[0]);
    for (i, v) in variables.iter().enumerate() {
        if let Some(x) = of(i) {
            let g = Tensor::full(x, v.shape(), &Device::Cpu).unwrap().to_dtype(v.dtype()).unwrap();
            store.insert(v, g);
        }
    }
    store
}

fn values(store: &GradStore, v: &Var) -> Vec<f64> {
    let g = store.get(v).unwrap();
    assert_eq!((g.dtype(), g.shape()), (v.dtype(), v.shape()));
    g.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn types_are_averaged_apart_and_keep_their_places() {
    for n in [1, 2, 3] {
        run(n, |g| {
            // 20 MiB of f32 three times: more than one bucket, between variables of other types.
            let big = 5 << 20;
            let vars = [
                var(3, DType::F32),
                var(7, DType::BF16),
                var(big, DType::F32),
                var(2, DType::F64),
                var(big, DType::F32),
                var(5, DType::F16),
                var(big, DType::F32),
                var(0, DType::F32),
            ];
            let mine = |rank: usize, i: usize| (8 * i) as f64 + 6.0 * rank as f64;
            let mut grads = store(&vars, |i| Some(mine(g.rank(), i)));
            let before = g.stats().calls;
            average_gradients(&g, &vars, &mut grads).unwrap();
            for (i, v) in vars.iter().enumerate() {
                let want = (0..n).map(|r| mine(r, i)).sum::<f64>() / n as f64;
                assert!(values(&grads, v).iter().all(|&x| x == want), "variable {i} on {n} ranks");
            }
            // One about what there is, one for each of f16, bf16 and f64, three for the large f32.
            assert_eq!(g.stats().calls - before, 7);
        });
    }
}

#[test]
fn a_wire_carries_all_types_but_f64_in_fewer_bytes() {
    run(2, |g| {
        let vars = [var(4000, DType::F32), var(4000, DType::F64), var(4000, DType::BF16)];
        let mut grads = store(&vars, |i| Some(0.3 * (i + g.rank()) as f64));
        let before = g.stats().bytes_sent;
        average_gradients(&g.with_wire(Wire::Int8Block), &vars, &mut grads).unwrap();
        for (i, v) in vars.iter().enumerate() {
            let want = 0.3 * (i as f64 + 0.5);
            let most = if i == 1 { 1e-15 } else { 0.01 };
            assert!(
                values(&grads, v).iter().all(|x| (x - want).abs() <= most),
                "{i}: {}",
                values(&grads, v)[0]
            );
        }
        // A byte and a bit for each element of two, eight for those of f64, and which there are.
        assert!(g.stats().bytes_sent - before < 4000 * (8 + 3), "{}", g.stats().bytes_sent - before);
    });
}

#[test]
fn gradients_missing_everywhere_stay_missing_and_missing_somewhere_count_as_zero() {
    run(3, |g| {
        let vars = [var(4, DType::F32), var(4, DType::F32), var(4, DType::F32)];
        // Variable 0 is missing on all ranks, 1 on rank 1 only, 2 everywhere but on rank 2.
        let mut grads = store(&vars, |i| match i {
            0 => None,
            1 => (g.rank() != 1).then_some(3.0),
            _ => (g.rank() == 2).then_some(6.0),
        });
        average_gradients(&g, &vars, &mut grads).unwrap();
        assert!(grads.get(&vars[0]).is_none());
        assert_eq!(values(&grads, &vars[1]), [2.0; 4]);
        assert_eq!(values(&grads, &vars[2]), [2.0; 4]);
    });
}

#[test]
fn the_average_of_shares_is_the_gradient_of_the_batch() {
    let w = |rows: &[[f32; 2]]| {
        let w = Var::new(&[0.5f32, -0.25], &Device::Cpu).unwrap();
        let x = Tensor::from_slice(rows.as_flattened(), (rows.len(), 2), &Device::Cpu).unwrap();
        let loss = x.broadcast_mul(&w).unwrap().sqr().unwrap().sum_all().unwrap();
        (w, loss)
    };
    let rows = [[1f32, 2.0], [3.0, -1.0], [0.5, 4.0], [2.0, 2.0], [-1.0, 0.0]];
    let (all, sum) = w(&rows);
    let whole = values(&(sum / rows.len() as f64).unwrap().backward().unwrap(), &all);
    run(2, |g| {
        let mine: Vec<_> = rows.iter().copied().skip(g.rank()).step_by(2).collect();
        let (w, sum) = w(&mine);
        let mut grads = (sum * (2.0 / rows.len() as f64)).unwrap().backward().unwrap();
        average_gradients(&g, [&w], &mut grads).unwrap();
        for (a, b) in values(&grads, &w).iter().zip(&whole) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
    });
}

#[test]
fn a_type_without_an_average_is_refused_and_the_group_lives() {
    run(2, |g| {
        let vars = [var(1, DType::F32), var(1, DType::U32)];
        let mut grads = store(&vars, |_| None);
        let e = average_gradients(&g, &vars, &mut grads).unwrap_err();
        assert!(matches!(e, Error::DType { index: 1, dtype: "u32" }), "{e}");
        let mut x = [g.rank() as u32 + 1];
        g.all_reduce(&mut x, ReduceOp::Sum).unwrap();
        assert_eq!(x, [3]);
    });
}

#[test]
fn lists_that_differ_are_an_error_on_some_rank() {
    let results = run(2, |g| {
        let vars = [var(4, DType::F32), var(4, DType::F32)];
        let mut grads = store(&vars, |_| Some(1.0));
        average_gradients(&g, &vars[g.rank()..], &mut grads)
    });
    assert!(
        results.iter().any(|r| {
            matches!(r, Err(Error::Group(e)) if matches!(e.kind(), comity::ErrorKind::Mismatch { .. }))
        }),
        "{results:?}"
    );
}
