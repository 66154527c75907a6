"""Making the name known to torch."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist

from comity._torch import DEVICES
from comity.errors import UnavailableError

from .versions import choose


def register() -> None:
    """Make `comity` a backend of torch.distributed. Calling it again does nothing more."""
    if not dist.is_available():
        raise UnavailableError(
            "this torch is built without torch.distributed, which the backend comity needs"
        )
    choose(torch.__version__)
    if "COMITY" not in dist.Backend._plugins:
        dist.Backend.register_backend("comity", create, extended_api=True, devices=DEVICES)


def create(opts: Any, settings: Any) -> Any:
    """What torch calls to make a group."""
    if choose(torch.__version__) == "backend":
        from . import mps
        from .backend import create as make
        from .group import Group

        if torch.backends.mps.is_available():
            mps.install()
        backend = make(opts, settings)
        devices = dist.BackendConfig(dist.Backend(_asked())).get_device_backend_map()
        if any(str(name) != "comity" for name in devices.values()):
            # Torch's own group passes calls to backends by device.
            return backend
        theirs = opts.process_group
        group = Group(backend, theirs.get_group_store(), map(torch.device, devices))
        if theirs.bound_device_id is not None:
            group.bound_device_id = theirs.bound_device_id
        return group
    from .process_group import create as make
    from .process_group import refuse_devices

    refuse_devices(_asked())
    return make(opts, settings)


def _asked() -> str:
    """The backend string of the group being made, which torch does not tell: it is in the caller's frame."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "_new_process_group_helper":
            return str(frame.f_locals.get("backend", "comity"))
        frame = frame.f_back
    return "comity"
