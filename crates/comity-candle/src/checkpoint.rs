//! Checkpoints of models that are spread over ranks: one ordinary safetensors file, to which every rank writes its bytes.
//!
//! The file is that of a model on one process: other programs read it as it is, and it loads on any number of ranks.

use crate::{Error, Parameter, Result, ShardingCause, ShardingError, Weights, load::Area, parameter::agree};
use candle_core::{DType, Device, Tensor};
use comity::Group;
use safetensors::{
    View as _,
    tensor::{Dtype, Metadata, TensorInfo},
};
use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// Write parameters that are spread over the ranks to one safetensors file.
///
/// Every rank calls this, with the same parameters in the same order. Ranks that see rank 0's file, on its host or on a shared file system,
/// write their own bytes to it; the others send them to rank 0. The file has another name until all is written and on the disk: under `path`
/// there is the whole checkpoint or, when a rank dies, whatever was there before. A file that a killed rank 0 left goes with the next save.
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use comity_candle::{Parameter, Sharding, load_checkpoint, save_checkpoint};
///
/// # let path = std::env::temp_dir().join(format!("comity-candle-{}.safetensors", std::process::id()));
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let parts = Sharding::balanced().partition(6, group.size())?;
/// let rows = parts.sizes()[group.rank()];
/// let w = Var::ones((rows, 4), DType::F32, &Device::Cpu)?;
/// let parameters = [Parameter::sharded("up.weight", w.as_tensor().clone(), 0, parts)];
/// save_checkpoint(&group, &path, &parameters)?;
/// load_checkpoint(&group, &path, &parameters)?; // into the same variables, on any number of ranks
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Sharding`] when ranks give different parameters; [`Error::File`] on the rank that cannot write, and for the others
/// an error that names it; [`Error::Group`] when a rank fails meanwhile.
pub fn save_checkpoint(group: &Group, path: impl AsRef<Path>, parameters: &[Parameter]) -> Result<()> {
    let plan = FilePlan::new(group, parameters);
    // A rank without a plan takes part: the others wait for it.
    let agreed = agree(group, "checkpoint", plan.as_ref().map_or(&[], |p| &p.header));
    let plan = plan?;
    agreed?;
    let path = path.as_ref();
    let temporary = temporary(group, path)?;
    // Rank 0's file stays open, and so locked, until it has its name.
    let written = write(group, path, &temporary, &plan, parameters);
    let out = written.and_then(|_file| finish(group, &temporary, path));
    if out.is_err() && group.rank() == 0 {
        // Nobody wants half a checkpoint; the first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    out
}

/// Read parameters from a checkpoint into their variables; each rank reads its bytes.
///
/// The file may come from any number of ranks, or from another program. [`save_checkpoint`] has an example.
///
/// # Errors
/// [`Error::Sharding`] when a parameter is not there, has another shape or type, or is no variable, or when ranks have different
/// files; [`Error::File`]; [`Error::Group`].
pub fn load_checkpoint(group: &Group, path: impl AsRef<Path>, parameters: &[Parameter]) -> Result<()> {
    let path = path.as_ref();
    let mut weights = Weights::open(group, [path], DType::F32, &Device::Cpu)?;
    for p in parameters {
        let fail = |cause| Error::from(ShardingError::new(&p.name, "parameter", group.size(), cause));
        let variable = p.variable().ok_or_else(|| {
            fail(ShardingCause::DType {
                expected: "a variable".into(),
                got: "a tensor that cannot be set".into(),
            })
        })?;
        weights.set_dtype(&p.name, p.tensor.dtype())?;
        let whole = p.whole_shape();
        match weights.shape(&p.name) {
            Some(shape) if shape != whole => {
                return Err(fail(ShardingCause::Shape { expected: whole, got: shape.to_vec() }));
            }
            _ => {}
        }
        let x = match &p.part {
            Some((axis, partition)) => weights.part_of(&p.name, *axis, partition)?,
            None => weights.tensor(&p.name)?,
        };
        variable.set(&x.to_device(variable.device())?)?;
    }
    Ok(())
}

struct FilePlan {
    header: Vec<u8>,
    /// Position at which each parameter's bytes begin, in the order given.
    offsets: Vec<u64>,
    len: u64,
}

impl FilePlan {
    fn new(group: &Group, parameters: &[Parameter]) -> Result<Self> {
        // As the safetensors crate has it: the widest types first, so that all are aligned; then by name.
        let kind = |p: &Parameter| Dtype::from(p.tensor.dtype());
        let mut order: Vec<usize> = (0..parameters.len()).collect();
        order.sort_by(|&a, &b| {
            let a = &parameters[a];
            let b = &parameters[b];
            kind(b).cmp(&kind(a)).then_with(|| a.name.cmp(&b.name))
        });
        let mut at = 0;
        let mut begins = vec![0; parameters.len()];
        let mut infos = Vec::new();
        for i in order {
            let p = &parameters[i];
            let dtype = kind(p);
            let shape = p.whole_shape();
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            begins[i] = at;
            infos.push((p.name.clone(), TensorInfo { dtype, shape, data_offsets: (at, at + bytes) }));
            at += bytes;
        }
        let mut names = HashSet::new();
        if let Some((name, _)) = infos.iter().find(|(name, _)| !names.insert(name)) {
            return Err(ShardingError::new(name, "parameters", group.size(), ShardingCause::Twice).into());
        }
        let metadata = Metadata::new(None, infos).map_err(candle_core::Error::wrap)?;
        let mut text = serde_json::to_vec(&metadata).map_err(candle_core::Error::wrap)?;
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend(text);
        let start = header.len();
        let offsets = begins.iter().map(|b| (start + b) as u64).collect();
        Ok(Self { header, offsets, len: (start + at) as u64 })
    }
}

/// A name beside `path` that no other save has, the same on every rank.
fn temporary(group: &Group, path: &Path) -> Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut mark = [now ^ (u64::from(std::process::id()) << 32)];
    group.broadcast(&mut mark, 0)?;
    Ok(path.with_file_name(format!("{}{:016x}", temporary_prefix(path), mark[0])))
}

/// Beginning of the names of files that are to become this checkpoint; 16 digits follow.
fn temporary_prefix(path: &Path) -> String {
    format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Remove the files of earlier saves whose rank 0 was killed: nobody holds their locks. What cannot be removed is no obstacle.
fn remove_abandoned(path: &Path) {
    let prefix = temporary_prefix(path);
    for entry in fs::read_dir(folder_of(path)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = name
            .strip_prefix(&prefix)
            .is_some_and(|mark| mark.len() == 16 && mark.bytes().all(|b| b.is_ascii_hexdigit()));
        let is_free = |path: &Path| File::open(path).is_ok_and(|f| f.try_lock().is_ok());
        if is_ours && is_free(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn write(
    group: &Group,
    path: &Path,
    temporary: &Path,
    plan: &FilePlan,
    parameters: &[Parameter],
) -> Result<Option<File>> {
    let failed = |e| Error::File { path: temporary.into(), source: e };
    let mut mine = Ok(None);
    if group.rank() == 0 {
        remove_abandoned(path);
        mine = create(temporary, plan).map(Some).map_err(failed);
    }
    all_well(group, &mine)?;
    if group.rank() != 0 {
        // Another host has no such file, and sends what it has.
        mine = Ok(OpenOptions::new().write(true).open(temporary).ok());
    }
    let file = mine?;
    let mut reach = vec![false; group.size()];
    group.all_gather(&[file.is_some()], &mut reach)?;
    let mut out = Ok(());
    for (i, p) in parameters.iter().enumerate() {
        let write = |rank: usize, x: &Tensor| match &file {
            Some(file) => write_part(file, plan.offsets[i], p, rank, x).map_err(failed),
            None => Ok(()),
        };
        if out.is_ok() && (group.rank() == 0 || p.part.is_some()) {
            out = write(group.rank(), &p.tensor);
        }
        for rank in (1..group.size()).filter(|&r| !reach[r] && p.part.is_some()) {
            if group.rank() == rank {
                crate::send(group, &p.tensor.detach(), 0, 0)?;
            } else if group.rank() == 0 {
                let x = crate::recv(group, part_shape(p, rank), p.tensor.dtype(), &Device::Cpu, rank, 0)?;
                if out.is_ok() {
                    out = write(rank, &x);
                }
            }
        }
    }
    if let (Some(file), true) = (&file, out.is_ok()) {
        out = file.sync_all().map_err(failed);
    }
    all_well(group, &out)?;
    out.map(|()| file)
}

fn create(temporary: &Path, plan: &FilePlan) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).open(temporary)?;
    // Until it is closed: a sign that the save is under way. Not every file system has locks.
    let _ = file.try_lock();
    file.set_len(plan.len)?;
    file.write_all_at(&plan.header, 0)?;
    Ok(file)
}

fn part_shape(p: &Parameter, rank: usize) -> Vec<usize> {
    let mut shape = p.whole_shape();
    if let Some((axis, partition)) = &p.part {
        shape[*axis] = partition.sizes()[rank];
    }
    shape
}

/// Write a rank's part of a parameter where it belongs.
fn write_part(file: &File, offset: u64, p: &Parameter, rank: usize, x: &Tensor) -> io::Result<()> {
    let x = x.to_device(&Device::Cpu).map_err(io::Error::other)?;
    let bytes = x.data();
    let whole = p.whole_shape();
    let area = match &p.part {
        Some((axis, partition)) => Area::part(&whole, *axis, partition.of(rank)),
        None => Area::whole(&whole),
    };
    let size = p.tensor.dtype().size_in_bytes();
    let mut at = 0;
    let needed: u64 = area.runs(size, 1).map(|r| r.end - r.start).sum();
    if bytes.len() as u64 != needed {
        let text = format!("{}: rank {rank} has {} bytes, and its part has {needed}", p.name, bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    for run in area.runs(size, 1) {
        let len = (run.end - run.start) as usize;
        file.write_all_at(&bytes[at..at + len], offset + run.start)?;
        at += len;
    }
    Ok(())
}

/// Give the written file its name, and return when it has it.
fn finish(group: &Group, temporary: &Path, path: &Path) -> Result<()> {
    let mut renamed = Ok(());
    if group.rank() == 0 {
        renamed = rename(temporary, path).map_err(|e| Error::File { path: path.into(), source: e });
    }
    all_well(group, &renamed)?;
    renamed
}

fn rename(temporary: &Path, path: &Path) -> io::Result<()> {
    fs::rename(temporary, path)?;
    File::open(folder_of(path))?.sync_all()
}

/// An error for the ranks that did well while others did not.
fn all_well<T>(group: &Group, mine: &Result<T>) -> Result<()> {
    let mut all = vec![false; group.size()];
    group.all_gather(&[mine.is_ok()], &mut all)?;
    let ranks: Vec<usize> = (0..all.len()).filter(|&r| !all[r]).collect();
    if ranks.is_empty() || mine.is_err() {
        return Ok(());
    }
    let cause = ShardingCause::Unwritable { ranks };
    Err(ShardingError::new("", "checkpoint", group.size(), cause).into())
}
