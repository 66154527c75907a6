"""Comity as a backend of torch.distributed: `dist.init_process_group("comity")`.

Torch finds it without any import. With torch 2.14 and newer it can serve the CPU tensors of a group whose other devices have other
backends: `"cpu:comity,cuda:nccl"`.
"""

from __future__ import annotations

from . import hooks
from .compression import Half, Int8, TopK
from .lifecycle import Options
from .metrics import get_metrics, log_metrics, reset_metrics
from .registration import register

register()

__all__ = [
    "Half",
    "Int8",
    "Options",
    "TopK",
    "get_metrics",
    "hooks",
    "log_metrics",
    "register",
    "reset_metrics",
]
