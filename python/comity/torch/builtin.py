"""The hooks of DistributedDataParallel that torch has in C++.

Its FP16_COMPRESS takes what a future holds only as C++ makes it, which Python cannot: the same hook in Python stands in for it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

_installed = False


def install() -> None:
    """Once for the process. Groups of other backends keep torch's own."""
    global _installed  # noqa: PLW0603
    ddp = torch.nn.parallel.DistributedDataParallel
    if _installed or not hasattr(dist, "BuiltinCommHookType"):
        return
    _installed = True
    register = ddp._register_builtin_comm_hook

    @functools.wraps(register)
    def chosen(self: Any, comm_hook_type: Any) -> None:
        if comm_hook_type != dist.BuiltinCommHookType.FP16_COMPRESS or not _ours(self):
            register(self, comm_hook_type)
            return
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        self.register_comm_hook(self.process_group, default_hooks.fp16_compress_hook)

    ddp._register_builtin_comm_hook = chosen


def _ours(model: Any) -> bool:
    """Whether this package reduces the model's gradients."""
    device = next(model.module.parameters()).device.type
    backends = dict(part.split(":") for part in dist.get_backend_config(model.process_group).split(","))
    return backends.get(device) == "comity"
