//! Data parallelism whose gradients travel while the backward pass still computes others.
//!
//! ```text
//! backward     | layer 3 | layer 2 | layer 1 | layer 0 |
//! all_reduce             | bucket of 3 | bucket of 2, 1 | bucket of 0 |
//! ```
//!
//! Candle says of no gradient when it is final. An identity on a variable does: its own gradient is asked for just then. So the model is
//! built for each step, out of such identities, which costs a copy of the weights.

use crate::{
    Error, Result, average_gradients, broadcast_variables,
    collective::{in_calls, takes_on_device},
    gradients::{averages, check_types},
    parameter::agree,
    whole_parameters,
};
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Shape, Tensor, Var, backprop::GradStore};
use candle_nn::{Init, VarBuilder, VarMap, var_builder::SimpleBackend};
use comity::{Group, ReduceOp, Request};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Buckets that a model's gradients are cut into, where that makes them neither small nor larger than 32 MiB.
const BUCKETS: usize = 8;
const SMALLEST: usize = 64 << 10;
const LARGEST: usize = 32 << 20;

/// Training of one model on all ranks, each with its share of the batch.
///
/// Every rank begins with rank 0's variables and takes the same steps.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, Optimizer, SGD, VarBuilder, VarMap, linear};
/// use comity_candle::DataParallel;
///
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let vars = VarMap::new();
/// linear(4, 2, VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?; // makes the variables
/// let mut training = DataParallel::new(&group, &vars)?;
/// let mut sgd = SGD::new(vars.all_vars(), 0.1)?;
///
/// let mine = [Tensor::ones((8, 4), DType::F32, &Device::Cpu)?]; // this rank's share, here in one piece
/// let (loss, gradients) = training.gradients(&mine, |vb, x| {
///     Ok(linear(4, 2, vb)?.forward(x)?.sqr()?.mean_all()?)
/// })?;
/// sgd.step(&gradients)?;
/// # assert!(loss > 0.0);
/// # Ok::<(), comity_candle::Error>(())
/// ```
pub struct DataParallel {
    group: Group,
    /// By name, so that all ranks have one order.
    variables: Arc<Vec<(String, Var)>>,
    /// The order in which gradients become final, once it is known.
    order: Option<Vec<usize>>,
    overlaps: bool,
}

impl fmt::Debug for DataParallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataParallel").field("variables", &self.variables.len()).finish_non_exhaustive()
    }
}

impl DataParallel {
    /// Begin with rank 0's values of these variables, which every rank has under the same names.
    ///
    /// # Errors
    /// [`Error::DType`] for a variable whose gradient cannot be averaged; [`Error::Sharding`] when ranks have variables of other names,
    /// shapes or types; [`Error::Group`].
    pub fn new(group: &Group, variables: &VarMap) -> Result<Self> {
        let parameters = whole_parameters(variables).into_iter();
        let all: Vec<(String, Var)> =
            parameters.filter_map(|p| Some((p.name.clone(), p.variable()?))).collect();
        let describe = |(name, v): &(String, Var)| format!("{name} {:?} {:?}\n", v.shape(), v.dtype());
        agree(group, "data parallel training", all.iter().map(describe).collect::<String>().as_bytes())?;
        check_types(all.iter().map(|(_, v)| v))?;
        broadcast_variables(group, all.iter().map(|(_, v)| v), 0)?;
        Ok(Self { group: group.clone(), variables: Arc::new(all), order: None, overlaps: true })
    }

    /// Let gradients travel during the backward pass, as they do unless told otherwise, or after it.
    #[must_use]
    pub fn overlap(mut self, overlap: bool) -> Self {
        self.overlaps = overlap;
        self
    }

    /// Mean loss of this rank's micro-batches, and its gradient, averaged over the ranks.
    ///
    /// `loss` builds the model out of the [`VarBuilder`] and gives the loss of one micro-batch. Gradients of several are added up on this
    /// rank; those of the last travel as they become final. A variable that no rank's loss needs has no gradient.
    ///
    /// # Errors
    /// Errors of `loss`, and those of [`average_gradients`](crate::average_gradients).
    pub fn gradients<B>(
        &mut self,
        micro_batches: &[B],
        loss: impl Fn(VarBuilder<'static>, &B) -> Result<Tensor>,
    ) -> Result<(f64, GradStore)> {
        if micro_batches.is_empty() {
            return Err(candle_core::Error::Msg("there is no micro-batch to learn from".into()).into());
        }
        let on_device = self.variables.first().is_some_and(|(_, v)| takes_on_device(&self.group, v.device()));
        // Alone, nothing travels, and on a GPU all follows the backward pass on its stream: no micro-batch needs hooks.
        let travels = usize::from(self.group.size() > 1 && !on_device);
        let (first, last) = micro_batches.split_at(micro_batches.len() - travels);
        let share = 1.0 / micro_batches.len() as f64;
        let mut mean = 0.0;
        let mut sum = None;
        for batch in first {
            let loss = (loss(self.builder(None), batch)? * share)?;
            mean += scalar(&loss)?;
            let gradients = loss.backward()?;
            sum = Some(self.add(sum, gradients)?);
        }
        let [last] = last else {
            let mut sum = sum.ok_or(candle_core::Error::UnwrapNone)?;
            if on_device {
                average_gradients(&self.group, self.variables.iter().map(|(_, v)| v), &mut sum)?;
            }
            return Ok((mean, sum));
        };
        let step = Arc::new(Step::new(self, sum));
        let loss = (loss(self.builder(Some(&step)), last)? * share)?;
        mean += scalar(&loss)?;
        let mut gradients = loss.backward()?;
        drop(loss);
        self.finish(&step, &mut gradients)?;
        Ok((mean, gradients))
    }

    /// The sum, without the graph that candle's gradients hold.
    fn add(&self, sum: Option<GradStore>, mut gradients: GradStore) -> Result<GradStore> {
        for (_, v) in self.variables.iter() {
            let total = match (sum.as_ref().and_then(|s| s.get(v)), gradients.get(v)) {
                (Some(a), Some(b)) => (a + b)?,
                (Some(g), None) | (None, Some(g)) => g.clone(),
                (None, None) => continue,
            };
            gradients.insert(v, total.detach());
        }
        Ok(gradients)
    }

    fn builder(&self, step: Option<&Arc<Step>>) -> VarBuilder<'static> {
        let device = self.variables.first().map_or(Device::Cpu, |(_, v)| v.device().clone());
        let dtype = self.variables.first().map_or(DType::F32, |(_, v)| v.dtype());
        let hooks = Hooks {
            at: self.variables.iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect(),
            variables: self.variables.clone(),
            step: step.cloned(),
            made: Mutex::new(HashMap::new()),
        };
        VarBuilder::from_backend(Box::new(hooks), dtype, device)
    }

    /// Send what has not been sent, and put the averages in the place of this rank's gradients.
    fn finish(&mut self, step: &Arc<Step>, gradients: &mut GradStore) -> Result<()> {
        let mut state = locked(&step.state);
        let mut present = vec![false; self.variables.len()];
        for (i, (_, v)) in self.variables.iter().enumerate() {
            let before = step.before.as_ref().and_then(|b| b.get(v));
            present[i] = gradients.get(v).is_some() || before.is_some();
            if state.ready[i].is_none() {
                // Its hook was not asked, or it has none.
                state.ready[i] = match (gradients.get(v), before) {
                    (Some(g), Some(b)) => Some((g + b)?.detach()),
                    (Some(g), None) | (None, Some(g)) => Some(g.detach()),
                    (None, None) => Some(v.zeros_like()?),
                };
            }
        }
        step.start_full(&mut state)?;
        // Behind all buckets, in the order of the group's calls: where one of theirs has failed, its error is the cause.
        let agreed = in_calls(|| self.group.with_wire(None).all_reduce(&mut present, ReduceOp::Or));
        let mut ended = Vec::new();
        for (bucket, request) in std::mem::take(&mut state.pending) {
            // WAIT: a request, whose call has a deadline
            ended.push((bucket, in_calls(|| request.wait())?));
        }
        agreed?;
        for (bucket, averages) in ended {
            for (i, average) in bucket.into_iter().zip(averages) {
                let v = &self.variables[i].1;
                match present[i] {
                    true => gradients.insert(v, average),
                    false => gradients.remove(v),
                };
            }
        }
        if self.order.is_none() {
            self.order = Some(self.agreed_order(&state.finals)?);
        }
        Ok(())
    }

    /// Rank 0's order, for all.
    fn agreed_order(&self, seen: &[usize]) -> Result<Vec<usize>> {
        let mut order: Vec<u64> = seen.iter().map(|&i| i as u64).collect();
        order.extend((0..self.variables.len()).filter(|i| !seen.contains(i)).map(|i| i as u64));
        in_calls(|| self.group.broadcast(&mut order, 0))?;
        Ok(order.into_iter().map(|i| i as usize).collect())
    }

    /// Variables that travel together: of one type, in the order in which their gradients become final.
    fn buckets(&self) -> Vec<Vec<usize>> {
        let bytes = |i: usize| {
            let v = &self.variables[i].1;
            v.elem_count() * v.dtype().size_in_bytes()
        };
        let order: Vec<usize> = match &self.order {
            Some(order) => order.clone(),
            None => (0..self.variables.len()).collect(),
        };
        let total: usize = order.iter().map(|&i| bytes(i)).sum();
        let limit = (total / BUCKETS).clamp(SMALLEST, LARGEST);
        let mut buckets: Vec<Vec<usize>> = Vec::new();
        let mut size = 0;
        let mut dtype = None;
        for i in order {
            let kind = self.variables[i].1.dtype();
            if dtype != Some(kind) || size >= limit {
                buckets.push(Vec::new());
                size = 0;
                dtype = Some(kind);
            }
            if let Some(last) = buckets.last_mut() {
                last.push(i);
            }
            size += bytes(i);
        }
        buckets
    }
}

fn scalar(loss: &Tensor) -> Result<f64> {
    Ok(loss.to_dtype(DType::F64)?.to_scalar::<f64>()?)
}

/// A backward pass.
struct Step {
    group: Group,
    variables: Arc<Vec<(String, Var)>>,
    /// Gradients of earlier micro-batches.
    before: Option<GradStore>,
    buckets: Vec<Vec<usize>>,
    state: Mutex<BackwardPass>,
}

/// A bucket's averages on their way.
type Averages = Request<Vec<Tensor>, Error>;

struct BackwardPass {
    /// Final gradients that have not been sent.
    ready: Vec<Option<Tensor>>,
    /// Variables in the order in which their gradients became final.
    finals: Vec<usize>,
    started: usize,
    pending: Vec<(Vec<usize>, Averages)>,
    overlaps: bool,
}

impl Step {
    fn new(of: &DataParallel, before: Option<GradStore>) -> Self {
        let state = BackwardPass {
            ready: vec![None; of.variables.len()],
            finals: Vec::new(),
            started: 0,
            pending: Vec::new(),
            overlaps: of.overlaps && of.order.is_some(),
        };
        Self {
            group: of.group.clone(),
            variables: of.variables.clone(),
            before,
            buckets: of.buckets(),
            state: Mutex::new(state),
        }
    }

    fn is_final(&self, index: usize, gradient: &Tensor) -> Result<()> {
        let before = self.before.as_ref().and_then(|b| b.get(&self.variables[index].1));
        let gradient = match before {
            Some(before) => (gradient + before)?,
            None => gradient.clone(),
        };
        let mut state = locked(&self.state);
        state.finals.push(index);
        state.ready[index] = Some(gradient.detach());
        if state.overlaps { self.start_full(&mut state) } else { Ok(()) }
    }

    /// Start the calls of buckets whose gradients are all there, in their order, which is the same on every rank.
    fn start_full(&self, state: &mut BackwardPass) -> Result<()> {
        while let Some(bucket) = self.buckets.get(state.started) {
            if bucket.iter().any(|&i| state.ready[i].is_none()) {
                return Ok(());
            }
            let gradients: Vec<Tensor> = bucket.iter().filter_map(|&i| state.ready[i].clone()).collect();
            let request = self.group.spawn_as(move |g| averages(g, &gradients));
            state.pending.push((bucket.clone(), request));
            state.started += 1;
        }
        Ok(())
    }
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An identity on a variable, which learns its final gradient.
struct Hook {
    index: usize,
    step: Arc<Step>,
}

impl CustomOp1 for Hook {
    fn name(&self) -> &'static str {
        "final_gradient"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        use candle_core::backend::BackendStorage;
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _x: &Tensor, _y: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        self.step.is_final(self.index, gradient)?;
        Ok(Some(gradient.clone()))
    }
}

/// Variables with hooks, for a [`VarBuilder`].
struct Hooks {
    at: HashMap<String, usize>,
    variables: Arc<Vec<(String, Var)>>,
    step: Option<Arc<Step>>,
    /// A variable that is used twice has one hook.
    made: Mutex<HashMap<usize, Tensor>>,
}

impl Hooks {
    fn find(&self, name: &str) -> candle_core::Result<Tensor> {
        let Some(&index) = self.at.get(name) else {
            return Err(candle_core::Error::CannotFindTensor { path: name.into() });
        };
        let variable = self.variables[index].1.as_tensor();
        let Some(step) = self.step.as_ref().filter(|_| variable.device().is_cpu()) else {
            return Ok(variable.clone());
        };
        let mut made = locked(&self.made);
        if let Some(hooked) = made.get(&index) {
            return Ok(hooked.clone());
        }
        let hooked = variable.apply_op1(Hook { index, step: step.clone() })?;
        made.insert(index, hooked.clone());
        Ok(hooked)
    }
}

impl SimpleBackend for Hooks {
    fn get(&self, shape: Shape, name: &str, _: Init, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        let x = self.find(name)?;
        if x.shape() != &shape {
            candle_core::bail!("{name} has shape {:?}, and the model asks for {shape:?}", x.shape());
        }
        Ok(x)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        self.find(name)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.at.contains_key(name)
    }
}
