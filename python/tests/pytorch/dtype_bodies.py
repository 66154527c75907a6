"""What ranks do in `test_collectives.py` with every type that torch has."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def all_dtypes() -> list[torch.dtype]:
    """Every type that this torch has."""
    return sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)


def _filled(dtype: torch.dtype, start: int, n: int = 6) -> torch.Tensor:
    """A tensor of this type whose bytes are known: a view of bytes, which torch makes of every type. They are truth values as well."""
    return (torch.arange(start, start + n * dtype.itemsize) % 2).to(torch.uint8).view(dtype)


def _bytes(t: torch.Tensor) -> list[int]:
    return t.view(torch.uint8).reshape(-1).tolist()


def _strided(t: torch.Tensor) -> torch.Tensor:
    """The same elements as every second one of another tensor."""
    # Bytes, since not every type can be copied.
    size = t.element_size()
    wide = torch.zeros(2 * t.numel() * size, dtype=torch.uint8)
    wide.view(-1, 2, size)[:, 0] = t.view(torch.uint8).view(-1, size)
    return wide.view(t.dtype)[::2]


def _moves(
    rank: int, size: int, dtype: torch.dtype, form: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, Any]:
    """What each call that moves elements says, or whether all were right."""
    mine, others = form(_filled(dtype, rank)), [_filled(dtype, r) for r in range(size)]
    gathered = [form(_filled(dtype, 9)) for _ in range(size)]
    flat, copy, back = _filled(dtype, 9, 6 * size), form(_filled(dtype, rank)), form(_filled(dtype, 9))
    right, left = (rank + 1) % size, (rank - 1) % size

    def around() -> None:
        ops = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, back, left)]
        for w in dist.batch_isend_irecv(ops):
            w.wait()

    calls: dict[str, tuple[Callable[[], Any], Callable[[], bool]]] = {
        "all_gather": (
            lambda: dist.all_gather(gathered, mine),
            lambda: all(_same(a, b) for a, b in zip(gathered, others, strict=True)),
        ),
        "all_gather_into_tensor": (
            lambda: dist.all_gather_into_tensor(flat, mine.contiguous() if form is not _strided else mine),
            lambda: _bytes(flat) == [b for o in others for b in _bytes(o)],
        ),
        "broadcast": (lambda: dist.broadcast(copy, 0), lambda: _same(copy, others[0])),
        "send": (around, lambda: _same(back, others[left])),
    }
    said: dict[str, Any] = {}
    for name, (make, right_) in calls.items():
        said[name] = _error(make) or ("right" if right_() else "wrong")
    return said


def _error(f: Callable[[], Any]) -> tuple[str, str] | None:
    """The class and words of what `f` raises."""
    try:
        f()
    except Exception as e:
        return type(e).__name__, str(e)
    return None


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    size = a.element_size()
    if a.is_contiguous():
        return _bytes(a) == _bytes(b)
    # Bytes of each element, since not every type can be copied.
    wide = torch.as_strided(a, (a.numel() * 2 - 1,), (1,)).view(torch.uint8)
    return wide.tolist()[: (a.numel() * 2 - 1) * size] and [
        wide[2 * i * size + k].item() for i in range(a.numel()) for k in range(size)
    ] == _bytes(b)


def every_dtype(rank: int, size: int) -> dict[str, dict[str, Any]]:
    """By type: what the calls say."""
    warnings.simplefilter("ignore")
    said = {}
    for dtype in all_dtypes():
        for name, form in (("", lambda t: t), (" strided", _strided)):
            said[f"{dtype}{name}"] = _moves(rank, size, dtype, form)
        t = _filled(dtype, 1)
        said[f"{dtype}"]["all_reduce"] = _error(lambda t=t: dist.all_reduce(t)) or "right"
    dist.barrier()
    return said
