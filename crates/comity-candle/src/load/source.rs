//! Files with named tensors, and the bytes of parts of them.

use crate::{Error, Result};
use candle_core::quantized::{GgmlDType, gguf_file};
use safetensors::tensor::{Dtype, Metadata};
use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, BufReader},
    iter,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// No header is longer, as the safetensors crate has it too.
const LONGEST_HEADER: u64 = 100 << 20;
/// Bytes that are read at a time: whole elements of every type, and so few that an allocator keeps little of them.
const PIECE: usize = 64 << 10;
/// Bytes that are compared at each of three places of a tensor.
const SAMPLE: u64 = 64;

/// Files with named tensors.
#[derive(Debug)]
pub(crate) struct Source {
    files: Vec<(PathBuf, File)>,
    pub(crate) places: HashMap<String, TensorPlace>,
    pub(crate) metadata: HashMap<String, gguf_file::Value>,
    pub(crate) checksum: u64,
    pub(crate) read: AtomicU64,
}

/// A tensor's place in a file.
#[derive(Debug)]
pub(crate) struct TensorPlace {
    file: usize,
    offset: u64,
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: ElementKind,
}

/// Elements of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ElementKind {
    Plain(Dtype),
    Blocks(GgmlDType),
}

impl fmt::Display for ElementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(kind) => kind.fmt(f),
            Self::Blocks(kind) => write!(f, "{kind:?}"),
        }
    }
}

/// A part of a tensor along one axis: `outer` times, `ranges` of `length` pieces of `inner` elements.
#[derive(Debug)]
pub(crate) struct Area {
    outer: usize,
    length: usize,
    inner: usize,
    ranges: Vec<Range<usize>>,
    pub(crate) shape: Vec<usize>,
}

impl Area {
    /// All of a tensor.
    pub(crate) fn whole(shape: &[usize]) -> Self {
        let all = shape.iter().product();
        Self { outer: 1, length: all, inner: 1, ranges: iter::once(0..all).collect(), shape: shape.to_vec() }
    }

    /// Ranges of an axis, which the shape has.
    pub(crate) fn part(shape: &[usize], axis: usize, ranges: &[Range<usize>]) -> Self {
        let mut part = shape.to_vec();
        part[axis] = ranges.iter().map(Range::len).sum();
        let outer = shape[..axis].iter().product();
        let inner = shape[axis + 1..].iter().product();
        Self { outer, length: shape[axis], inner, ranges: ranges.to_vec(), shape: part }
    }

    /// Returns true if all runs begin and end with a block of so many elements.
    pub(crate) fn is_aligned(&self, block: usize) -> bool {
        let whole = |n: usize| (n * self.inner).is_multiple_of(block);
        whole(self.length) && self.ranges.iter().all(|r| whole(r.start) && whole(r.end))
    }

    /// The area's runs of bytes within the tensor, in order. Blocks of `block` elements have `size` bytes.
    pub(crate) fn runs(&self, size: usize, block: usize) -> impl Iterator<Item = Range<u64>> {
        let bytes = move |elements: usize| (elements / block * size) as u64;
        (0..self.outer).flat_map(move |i| {
            self.ranges.iter().map(move |r| {
                let at = i * self.length;
                bytes((at + r.start) * self.inner)..bytes((at + r.end) * self.inner)
            })
        })
    }
}

impl Source {
    pub(crate) fn open<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<Self> {
        let mut source = Self {
            files: Vec::new(),
            places: HashMap::new(),
            metadata: HashMap::new(),
            checksum: 0xcbf2_9ce4_8422_2325,
            read: AtomicU64::new(0),
        };
        for path in paths {
            let failed = |e| Error::File { path: path.into(), source: e };
            if path.is_dir() {
                for file in in_folder(path).map_err(failed)? {
                    source.add(&file).map_err(|e| Error::File { path: file, source: e })?;
                }
            } else {
                source.add(path).map_err(failed)?;
            }
        }
        Ok(source)
    }

    fn add(&mut self, path: &Path) -> io::Result<()> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0)?;
        let begin = self.files.len();
        let start = if magic.starts_with(b"GGUF") {
            self.add_gguf(&file)?
        } else {
            self.add_safetensors(&file, len, magic)?
        };
        if start > LONGEST_HEADER {
            return Err(invalid(format!("a header of {start} bytes is too long")));
        }
        let mut header = vec![0; start as usize];
        file.read_exact_at(&mut header, 0)?;
        self.mix(&len.to_le_bytes());
        self.mix(&header);
        self.sample(&file, len, start, begin)?;
        self.files.push((path.into(), file));
        Ok(())
    }

    /// Add a safetensors file; where its data starts.
    fn add_safetensors(&mut self, file: &File, len: u64, magic: [u8; 8]) -> io::Result<u64> {
        let header = u64::from_le_bytes(magic);
        if header > LONGEST_HEADER || header + 8 > len {
            return Err(invalid("neither a safetensors nor a GGUF file".into()));
        }
        let mut text = vec![0; header as usize];
        file.read_exact_at(&mut text, 8)?;
        let metadata: Metadata = serde_json::from_slice(&text).map_err(io::Error::other)?;
        let start = header + 8;
        if start + metadata.data_len() as u64 != len {
            let says = start + metadata.data_len() as u64;
            return Err(invalid(format!(
                "the file has {len} bytes and its header says {says}; it was cut off"
            )));
        }
        let file = self.files.len();
        for (name, info) in metadata.tensors() {
            let offset = start + info.data_offsets.0 as u64;
            let place =
                TensorPlace { file, offset, shape: info.shape.clone(), kind: ElementKind::Plain(info.dtype) };
            self.places.insert(name, place);
        }
        Ok(start)
    }

    /// Add a GGUF file; where its data starts.
    fn add_gguf(&mut self, file: &File) -> io::Result<u64> {
        let content = gguf_file::Content::read(&mut BufReader::new(file)).map_err(io::Error::other)?;
        let start = content.tensor_data_offset;
        let index = self.files.len();
        for (name, info) in content.tensor_infos {
            let kind = match info.ggml_dtype {
                GgmlDType::F32 => ElementKind::Plain(Dtype::F32),
                GgmlDType::F16 => ElementKind::Plain(Dtype::F16),
                GgmlDType::BF16 => ElementKind::Plain(Dtype::BF16),
                kind => ElementKind::Blocks(kind),
            };
            let offset = start.saturating_add(info.offset);
            self.places
                .insert(name, TensorPlace { file: index, offset, shape: info.shape.dims().to_vec(), kind });
        }
        self.metadata.extend(content.metadata);
        Ok(start)
    }

    /// Mix in bytes of each tensor that begins in the file that is added.
    fn sample(&mut self, file: &File, len: u64, start: u64, index: usize) -> io::Result<()> {
        let mut offsets: Vec<u64> =
            self.places.values().filter(|p| p.file == index).map(|p| p.offset).collect();
        offsets.sort_unstable();
        offsets.push(len);
        let mut bytes = Vec::new();
        for ends in offsets.windows(2).filter(|e| e[0] >= start && e[1] > e[0]) {
            let size = ends[1] - ends[0];
            for at in [0, size / 2, size.saturating_sub(SAMPLE)] {
                bytes.resize(SAMPLE.min(size - at) as usize, 0);
                file.read_exact_at(&mut bytes, ends[0] + at)?;
                self.mix(&bytes);
            }
        }
        Ok(())
    }

    /// FNV-1a: the same on every machine.
    fn mix(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.checksum = (self.checksum ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The bytes of a part of a tensor, whose blocks of `block` elements have `size` bytes.
    pub(crate) fn read(
        &self,
        place: &TensorPlace,
        area: &Area,
        size: usize,
        block: usize,
    ) -> Result<Vec<u8>> {
        let total: u64 = area.runs(size, block).map(|r| r.end - r.start).sum();
        let mut bytes = Vec::with_capacity(total as usize);
        self.read_pieces(place, area, size, block, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// The same bytes in pieces of whole elements, so that nothing as large as the tensor stands beside it.
    pub(crate) fn read_pieces(
        &self,
        place: &TensorPlace,
        area: &Area,
        size: usize,
        block: usize,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (path, file) = &self.files[place.file];
        let mut piece = Vec::with_capacity(PIECE);
        for run in area.runs(size, block) {
            let mut at = run.start;
            while at < run.end {
                let held = piece.len();
                let len = (PIECE - held).min((run.end - at) as usize);
                piece.resize(held + len, 0);
                file.read_exact_at(&mut piece[held..], place.offset + at)
                    .map_err(|e| Error::File { path: path.clone(), source: e })?;
                self.read.fetch_add(len as u64, Ordering::Relaxed);
                at += len as u64;
                if piece.len() == PIECE {
                    take(&piece)?;
                    piece.clear();
                }
            }
        }
        if piece.is_empty() { Ok(()) } else { take(&piece) }
    }
}

/// The safetensors files of a folder, by name.
fn in_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the folder has no safetensors files"));
    }
    files.sort();
    Ok(files)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
