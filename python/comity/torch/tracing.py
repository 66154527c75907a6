"""What torch.compile is told of this package: its functions run as they are, and no graph is made of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch._C._dynamo import eval_frame as _eval_frame

_strategy: Any = None
if hasattr(_eval_frame, "set_code_exec_strategy"):
    _skip = _eval_frame._FrameAction.SKIP
    _strategy = _eval_frame._FrameExecStrategy(_skip, _skip)


def skipped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function. Torch's compiler leaves it, and what it calls, as they are, if this torch can be told so."""
    # For a compiler that meets the call, and for one that meets the running function.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    if _strategy is not None:
        _eval_frame.set_code_exec_strategy(function.__code__, _strategy)
    return function


def skip_methods(*classes: type) -> None:
    """As `skipped`, all methods of these classes and of those of this package that they inherit from, but for the name of a group, by which
    graphs know it."""
    owners = {c for given in classes for c in given.__mro__ if c.__module__.startswith("comity.")}
    for owner in owners:
        for name, method in vars(owner).items():
            function = getattr(method, "fget", None) or method
            if hasattr(function, "__code__") and name != "group_name":
                skipped(function)


#: What torch.compile has set to look at each function that runs; None where it is not at work.
_compiling = getattr(_eval_frame, "get_eval_frame_callback", None)


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, not to be looked into by torch.compile, which would take streams for part of the model, where that is at work."""
    if _compiling is None or _compiling() is None:
        return function
    return sys.modules["torch._dynamo"].disable(function)
