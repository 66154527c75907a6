"""Tells torch.distributed of the backend `comity`: at once if torch is imported already, else when it is.

`import comity` must stay quick: no framework is imported here, and not `importlib.abc` either, which brings `pathlib`, `tempfile` and
more of the standard library. The import system asks for the methods, not for the classes.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

#: The module in which torch keeps its backends.
_HOME = "torch.distributed.distributed_c10d"
#: Those of which the backend takes tensors, here.
DEVICES = ["cpu", "mps"] if sys.platform == "darwin" else ["cpu", "cuda"]


def watch() -> None:
    """Register the backend now or when torch comes."""
    home = sys.modules.get(_HOME)
    if home is not None and not getattr(home.__spec__, "_initializing", False):
        _tell(home)
    elif not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _tell(home: ModuleType) -> None:
    """Name the backend to torch. Its code is imported when the first group is made."""
    if hasattr(home, "Backend") and "COMITY" not in home.Backend._plugins:
        home.Backend.register_backend("comity", _create, extended_api=True, devices=DEVICES)


def _create(opts: Any, settings: Any) -> Any:
    from comity.torch.registration import create

    return create(opts, settings)


class _Finder:
    """Lets the import system find torch's module, and runs `_tell` after it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != _HOME:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = cast("Loader", _Loader(spec.loader))
                return spec
        return None


class _Loader:
    """Torch's own loader, and a word after it."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # What others look for in a loader, such as `get_source`, is the real one's.
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        _tell(module)
