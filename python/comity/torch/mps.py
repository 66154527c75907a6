"""Memory of Apple GPUs, and c10d's calls on it. Tested on a stand-in only; not run on Apple hardware.

torch 2.13 and newer show the host the memory itself: a call waits, where it is made, until the GPU has done what it was given so far, and
then works on those bytes. What the GPU is given after `Work.wait` has returned sees what came. Older torch: copies through host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

_MPS = torch.device("mps")
#: By c10d operation: the backend's method, its options, the arguments before them, and which of these is returned beside the work.
_CALLS: dict[str, tuple[str, str | None, Sequence[str], str | None]] = {
    "allreduce_": ("allreduce", "AllreduceOptions", ["tensors"], "tensors"),
    "allreduce_coalesced_": ("allreduce_coalesced", "AllreduceCoalescedOptions", ["tensors"], None),
    "broadcast_": ("broadcast", "BroadcastOptions", ["tensors"], "tensors"),
    "reduce_": ("reduce", "ReduceOptions", ["tensors"], None),
    "allgather_": ("allgather", "AllgatherOptions", ["output_tensors", "input_tensors"], "output_tensors"),
    "allgather_coalesced_": (
        "allgather_coalesced", "AllgatherOptions", ["output_lists", "input_list"], None,
    ),
    "_allgather_base_": (
        "_allgather_base", "AllgatherOptions", ["output_tensor", "input_tensor"], "output_tensor",
    ),
    "allgather_into_tensor_coalesced_": (
        "all_gather_single_coalesced", "AllgatherOptions", ["outputs", "inputs"], None,
    ),
    "gather_": ("gather", "GatherOptions", ["output_tensors", "input_tensors"], None),
    "scatter_": ("scatter", "ScatterOptions", ["output_tensors", "input_tensors"], "output_tensors"),
    "reduce_scatter_": (
        "reduce_scatter", "ReduceScatterOptions", ["output_tensors", "input_tensors"], "output_tensors",
    ),
    "_reduce_scatter_base_": (
        "_reduce_scatter_base", "ReduceScatterOptions", ["output_tensor", "input_tensor"], "output_tensor",
    ),
    "reduce_scatter_tensor_coalesced_": (
        "reduce_scatter_single_coalesced", "ReduceScatterOptions", ["outputs", "inputs"], None,
    ),
    "alltoall_": ("alltoall", "AllToAllOptions", ["output_tensors", "input_tensors"], "output_tensors"),
    "alltoall_base_": (
        "alltoall_base", "AllToAllOptions", ["output", "input", "output_split_sizes", "input_split_sizes"], None,
    ),
    "barrier": ("barrier", "BarrierOptions", [], None),
    "send": ("send", None, ["tensors", "dst", "tag"], None),
    "recv_": ("recv", None, ["tensors", "src", "tag"], None),
    "recv_any_source_": ("recv_anysource", None, ["tensors", "tag"], None),
}  # fmt: skip
#: What methods are called before torch 2.15.
_BEFORE = {
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
#: Arguments that are options, by their names there.
_OPTIONS = {
    "async_op": "asyncOp", "reduce_op": "reduceOp", "root_rank": "rootRank", "root_tensor": "rootTensor",
    "sparse_indices": "sparseIndices", "device_ids": "device_ids", "timeout": "timeout",
}  # fmt: skip
#: What was registered, which lasts as long as this.
_library: torch.library.Library | None = None


def shown(t: torch.Tensor) -> torch.Tensor | None:
    """The tensor's own bytes as one of host memory, when the GPU has done all it was given so far; None where torch cannot show them."""
    alias = getattr(torch.mps, "_host_alias_storage", None)
    if alias is None or t.layout is not torch.strided or t.is_neg() or t.is_conj():
        return None
    try:
        # Keeps the GPU's memory alive.
        storage = alias(t.untyped_storage())
    except RuntimeError:  # memory that only the GPU reaches
        return None
    _fence()
    return torch.empty(0, dtype=t.dtype).set_(storage, t.storage_offset(), t.size(), t.stride())


def _fence() -> None:
    event = torch.mps.Event()
    try:
        event.record()
    except NotImplementedError:  # on a stream of the caller's
        torch.mps.synchronize()
        return
    event.synchronize()


def install() -> None:
    """Give torch the kernels of c10d for Apple GPUs that it lacks, once: without them calls do not come as far as the backend."""
    global _library  # noqa: PLW0603
    if _library is not None:
        return
    library = torch.library.Library("c10d", "IMPL", "MPS")
    for name, (method, *_) in _CALLS.items():
        full = f"c10d::{name}"
        call = getattr(_c10d.Backend, method, None) or getattr(_c10d.Backend, _BEFORE.get(method, ""), None)
        known = call is not None and torch._C._dispatch_has_kernel(full)
        if known and not torch._C._dispatch_has_kernel_for_dispatch_key(full, "MPS"):
            library.impl(name, _kernel(name, call))
    _library = library


def _kernel(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the call to the group's backend by C++'s method: a work that never was there cannot be returned."""
    _, options, given, returned = _CALLS[name]
    names = [a.name for a in getattr(torch.ops.c10d, name).default._schema.arguments]

    def kernel(*args: Any, **more: Any) -> Any:
        a = dict(zip(names, args, strict=False)) | more
        backend = _c10d.ProcessGroup.unbox(a["process_group"])._get_backend(_MPS)
        values = [a[n] for n in given]
        if options is not None:
            values.append(_options(options, a))
        work = call(backend, *values).boxed()
        return work if returned is None else (a[returned], work)

    return kernel


def _options(name: str, a: dict[str, Any]) -> Any:
    options = getattr(_c10d, name)()
    for key, own in _OPTIONS.items():
        value = a.get(key)
        if value is None or not hasattr(options, own):
            continue
        if key == "timeout":
            value = timedelta(milliseconds=value)
        elif key == "reduce_op":
            value = _c10d.ReduceOp.unbox(value)
        setattr(options, own, value)
    return options
