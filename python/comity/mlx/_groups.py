"""Groups as MLX scripts know them: `rank` and `size` are methods."""

from typing import Any, Unpack
from weakref import WeakKeyDictionary

import comity
from comity import _functions
from comity._elastic import ReformOutcome


class Group(comity.Group):
    """A `comity.Group` whose `rank` and `size` are called, as in MLX. All its operations are there as well."""

    __slots__ = ()

    def rank(self) -> int:  # type: ignore[override]
        """This process's place in the group, from 0."""
        return self._raw.rank

    def size(self) -> int:  # type: ignore[override]
        """How many ranks there are."""
        return self._size

    def reform(self, **options: Any) -> ReformOutcome:
        made = super().reform(**options)
        group = _functions.current(made.group)
        if group is not None:
            _made[group] = made.group
        return made

    reform.__doc__ = comity.Group.reform.__doc__

    def __repr__(self) -> str:
        return f"<comity.mlx.Group: rank {self._raw.rank} of {self._size}>"


_made: "WeakKeyDictionary[comity.Group, Group]" = WeakKeyDictionary()


def _as_mlx(group: comity.Group) -> Group:
    if isinstance(group, Group):
        return group
    made = _made.get(group)
    if made is None:
        made = _made[group] = Group(group._raw, group._end)
    return made


def init(
    strict: bool = False,
    backend: str = "any",
    *,
    timeout: float | None = None,
    key: bytes | str | None = None,
    **settings: Unpack[_functions.Settings],
) -> Group:
    """As `mx.distributed.init`: the group of this job; see `comity.init` for the settings.

    A job that does not come together is an error also without `strict`, never a group of one: only the absence of a launcher's variables
    makes one.
    """
    return _as_mlx(comity.init(backend, strict, timeout=timeout, key=key, **settings))


def is_available(backend: str = "any") -> bool:
    """As `mx.distributed.is_available`."""
    return comity.is_available(backend)


def of(group: comity.Group | None) -> Group:
    """The group that a call is for."""
    return _as_mlx(_functions.of(group))
