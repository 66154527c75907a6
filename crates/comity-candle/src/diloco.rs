//! DiLoCo: each rank trains by itself, and now and then all add up how far they have come. For slow links, and for ranks that come and go.

use crate::{Error, Result, collective::in_calls};
use candle_core::{DType, Device, Tensor, Var};
use comity::{Group, ReduceOp, ReformOptions, ViewMut};

/// Outer steps: how often, in how many parts, and how large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterSteps {
    /// Steps of the optimiser between two outer steps of a variable; a multiple of `fragments`.
    pub every: usize,
    /// Parts of the variables that have their turns one after the other: so less is sent at once.
    pub fragments: usize,
    /// Learning rate.
    pub rate: f32,
    /// Nesterov's momentum.
    pub momentum: f32,
}

impl Default for OuterSteps {
    fn default() -> Self {
        Self { every: 50, fragments: 1, rate: 0.7, momentum: 0.9 }
    }
}

/// Part of the variables, as all ranks agreed on it last.
#[derive(Debug)]
struct Fragment {
    variables: Vec<Var>,
    anchor: Vec<f32>,
    speed: Vec<f32>,
}

impl Fragment {
    fn values(&self) -> Result<Vec<f32>> {
        let mut all = Vec::with_capacity(self.anchor.len());
        for v in &self.variables {
            let values = v.as_detached_tensor().to_dtype(DType::F32).and_then(|x| x.flatten_all());
            all.append(&mut values?.to_vec1()?);
        }
        Ok(all)
    }

    /// Set the variables to what was agreed on.
    fn settle(&self) -> Result<()> {
        let mut at = 0;
        for v in &self.variables {
            let range = at..at + v.elem_count();
            at = range.end;
            let x = Tensor::from_slice(&self.anchor[range], v.shape(), &Device::Cpu)?.to_dtype(v.dtype())?;
            v.set(&x.to_device(v.device())?)?;
        }
        Ok(())
    }
}

/// Outer steps for variables that each rank trains with an optimiser of its own.
///
/// Call [`step`](Self::step) after each step of your optimiser. Between two outer steps nothing is sent. Then the ranks average how far the
/// variables have moved since the last time, and Nesterov's momentum carries that average on (Douillard et al., 2023).
///
/// When a rank dies the others form their group again ([`Group::reform`]), and the outer step is made with those that are left. When a
/// process waits to be taken in, the next outer step takes it in. A rank waits in `reform` until the others come to their next outer step,
/// so let the group's timeout be longer than `every` steps take.
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use comity_candle::{DiLoCo, OuterSteps};
///
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let w = Var::zeros(4, DType::F32, &Device::Cpu)?;
/// let mut diloco = DiLoCo::new(group, [&w], OuterSteps { every: 10, ..OuterSteps::default() }, true)?;
/// for _ in 0..100 {
///     // A step of the optimiser.
///     diloco.step()?;
/// }
/// assert_eq!(diloco.outer_steps(), 10);
/// diloco.settle()?; // the same on all ranks
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Debug)]
pub struct DiLoCo {
    group: Group,
    fragments: Vec<Fragment>,
    options: OuterSteps,
    /// Steps of this rank, and outer steps of all. -1: this rank has just joined.
    steps: i64,
    outer: i64,
    /// This rank has trained since it took over what others have.
    has_moved: bool,
}

impl DiLoCo {
    /// Agree with the other ranks on the variables: all begin with those of rank 0. `holds` is false on a rank that has joined a job that
    /// runs; it takes the state of the others.
    ///
    /// # Errors
    /// [`Error::Group`]: ranks that do not agree or are lost, or options that do not fit the variables.
    pub fn new<'a>(
        group: Group,
        variables: impl IntoIterator<Item = &'a Var>,
        options: OuterSteps,
        holds: bool,
    ) -> Result<Self> {
        let variables: Vec<Var> = variables.into_iter().cloned().collect();
        let OuterSteps { every, fragments, .. } = options;
        if fragments == 0 || every == 0 || every % fragments != 0 || fragments > variables.len() {
            let n = variables.len();
            let words = format!(
                "OuterSteps with every {every} and {fragments} fragments: `every` is a multiple of `fragments`, of which there are 1 to {n}, a variable each"
            );
            return Err(comity::Error::from(comity::ConfigError::new(words)).into());
        }
        let whole: usize = variables.iter().map(|v| v.elem_count()).sum();
        let mut parts: Vec<Vec<Var>> = vec![Vec::new(); fragments];
        let mut at = 0;
        let mut done = 0;
        let mut left = variables.len();
        for v in variables {
            let is_full = done * fragments >= whole * (at + 1) || left < fragments - at;
            if at + 1 < fragments && is_full && !parts[at].is_empty() {
                at += 1;
            }
            done += v.elem_count();
            left -= 1;
            parts[at].push(v);
        }
        let fragment = |variables: Vec<Var>| {
            let mut one = Fragment { variables, anchor: Vec::new(), speed: Vec::new() };
            one.anchor = one.values()?;
            one.speed = vec![0.0; one.anchor.len()];
            Ok(one)
        };
        let fragments = parts.into_iter().map(fragment).collect::<Result<_>>()?;
        let outer = if holds { 0 } else { -1 };
        let mut diloco = Self { group, fragments, options, steps: 0, outer, has_moved: false };
        diloco.agree()?;
        Ok(diloco)
    }

    /// The group of now.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Number of outer steps that have been made.
    pub fn outer_steps(&self) -> usize {
        self.outer.max(0) as usize
    }

    /// Count a step of the optimiser; make an outer step where it is time for one. True if it was.
    ///
    /// # Errors
    /// [`Error::Group`] where no group follows one that has lost a rank, and for all errors but [`comity::ErrorKind::PeerLost`]; [`Error::Tensor`].
    pub fn step(&mut self) -> Result<bool> {
        self.steps += 1;
        self.has_moved = true;
        let before = self.outer;
        // After a reform it may be the others' step that this rank makes.
        while self.outer < self.steps / (self.options.every / self.options.fragments) as i64 {
            match self.outer_step() {
                Ok(false) => {}
                Ok(true) => self.form_again()?,
                Err(e) if is_lost(&e) => self.form_again()?,
                Err(e) => return Err(e),
            }
        }
        Ok(self.outer > before)
    }

    /// Set the variables to those of the last outer steps, which are the same on all ranks: at the end, or to save them.
    ///
    /// # Errors
    /// [`Error::Tensor`] where candle refuses it.
    pub fn settle(&mut self) -> Result<()> {
        self.has_moved = false;
        self.fragments.iter().try_for_each(Fragment::settle)
    }

    /// Make one; true if a process waits to be taken in.
    fn outer_step(&mut self) -> Result<bool> {
        let turn = self.outer as usize % self.fragments.len();
        let OuterSteps { rate, momentum, .. } = self.options;
        let fragment = &mut self.fragments[turn];
        // A rank that has only just taken over the state has not moved, and does not count.
        let weight = f32::from(u8::from(self.has_moved));
        let values = fragment.values()?;
        let moved = fragment.anchor.iter().zip(values).map(|(a, v)| (a - v) * weight);
        let mut total: Vec<f32> = moved.chain([weight, self.group.joiners() as f32]).collect();
        in_calls(|| self.group.all_reduce(&mut total, ReduceOp::Sum))?;
        let joiners = total.pop().unwrap_or_default();
        let movers = total.pop().unwrap_or_default().max(1.0);
        for ((anchor, speed), sum) in fragment.anchor.iter_mut().zip(&mut fragment.speed).zip(total) {
            let average = sum / movers;
            *speed = *speed * momentum + average;
            *anchor -= rate * (average + momentum * *speed);
        }
        self.outer += 1;
        fragment.settle()?;
        Ok(joiners > 0.0)
    }

    /// Go on in the group of those that are left, and those that have come.
    fn form_again(&mut self) -> Result<()> {
        loop {
            self.group = in_calls(|| self.group.reform(&ReformOptions::new()))?.group;
            match self.agree() {
                Err(e) if is_lost(&e) => {}
                done => return done,
            }
        }
    }

    /// Give all ranks the state of those that are furthest.
    fn agree(&mut self) -> Result<()> {
        let is_first = self.outer == 0 && self.steps == 0;
        let mut furthest = [self.outer];
        in_calls(|| self.group.all_reduce(&mut furthest, ReduceOp::Max))?;
        let holds = self.outer == furthest[0];
        let mut steps = [self.steps];
        let mut views: Vec<ViewMut<'_>> = Vec::new();
        for fragment in &mut self.fragments {
            views.extend([(&mut fragment.anchor).into(), (&mut fragment.speed).into()]);
        }
        views.push((&mut steps).into());
        in_calls(|| self.group.sync(&mut views, holds))?;
        self.outer = furthest[0];
        if holds && !is_first {
            return Ok(());
        }
        self.steps = steps[0];
        self.settle()
    }
}

/// Returns true if a rank is gone, so that a group of the others may follow.
fn is_lost(e: &Error) -> bool {
    matches!(e, Error::Group(e) if matches!(e.kind(), comity::ErrorKind::PeerLost { .. }))
}
