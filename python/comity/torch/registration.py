"""Making the name known to torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from comity._torch import DEVICES
from comity.errors import UnavailableError

from .versions import choose

#: Kind of a backend that is not torch's own, as a process group has it.
_CUSTOM = "custom"


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
    if choose(torch.__version__) == "group":
        from .process_group import create as make

        return make(opts, settings)
    from . import mps
    from .backend import create as make
    from .group import Group

    if torch.backends.mps.is_available():
        mps.install()
    backend = make(opts, settings)
    theirs = opts.process_group
    if not _seems_alone(opts):
        # Torch's own group passes calls to backends by device.
        return backend
    group = backend._unseen = Group(backend, theirs.get_group_store(), map(torch.device, DEVICES))
    if theirs.bound_device_id is not None:
        group.bound_device_id = theirs.bound_device_id
    return group


def _seems_alone(opts: Any) -> bool:
    """Whether all devices of the group that is being made are Comity's. Torch names them only when it is there: then the first call looks
    again (`Lifecycle._look_for_others`)."""
    theirs = opts.process_group
    # The kind is that of the backend for an accelerator, if the group has one. Devices before this one are there.
    if theirs.name() != _CUSTOM or theirs._device_types:
        return False
    # A group of the name alone begins with the first device.
    probe = f"comity/device/{opts.group_rank}"
    opts.store.set(probe, "")
    return bool(theirs.get_group_store().check([f"{DEVICES[0]}//{probe}"]))
