"""Names the backend `comity` to torch.distributed.

Torch calls `register` at the end of `import torch` (the entry point `torch.backends` of this package), and `import comity` calls it where
torch is there already. No framework is imported here: `import comity` stays quick.
"""

from __future__ import annotations

import sys
from typing import Any

#: The module in which torch keeps its backends.
_HOME = "torch.distributed.distributed_c10d"
#: Devices of the tensors that the backend takes, on this system.
DEVICES = ["cpu", "mps"] if sys.platform == "darwin" else ["cpu", "cuda"]


def register() -> None:
    """Name the backend to torch, if torch.distributed is there. The backend's own code is imported with the first group."""
    home = sys.modules.get(_HOME)
    if home is None or getattr(home.__spec__, "_initializing", False):
        return
    if hasattr(home, "Backend") and "COMITY" not in home.Backend._plugins:
        home.Backend.register_backend("comity", _create, extended_api=True, devices=DEVICES)


def _create(opts: Any, settings: Any) -> Any:
    from comity.torch.registration import create

    return create(opts, settings)
