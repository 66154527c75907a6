"""The operations as functions, on the group that `init` makes."""

import math
import threading
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

from comity import _core, _process
from comity._elastic import ReformOutcome
from comity._group import Group
from comity.errors import ConfigError, MisuseError

# What each name stands for. `ring` is MLX's name for TCP; here every operation works on every link.
_BACKENDS: dict[str, tuple[str, str] | None] = {
    "any": None,
    "comity": None,
    "jaccl": ("COMITY_BACKEND", "jaccl"),
    "mpi": ("COMITY_BACKEND", "mpi"),
    "nccl": ("COMITY_BACKEND", "nccl"),
    "ring": ("COMITY_LINKS", "tcp"),
    "shm": ("COMITY_LINKS", "shm"),
    "tcp": ("COMITY_LINKS", "tcp"),
}
# What needs a library of its own.
_LOADED = ("jaccl", "mpi", "nccl")


class Settings(TypedDict, total=False):
    """Keywords of `init`, each in place of the variable ``COMITY_...`` of its name."""

    join_timeout: float
    rank: int
    size: int
    store: str
    join: bool
    job: str
    key_file: str
    insecure: bool | str
    detection: float
    links: str | Sequence[str]
    addrs: str | Sequence[str]
    connect: str
    interfaces: str | Sequence[str]
    ports: str
    relay: bool
    mptcp: bool
    connections: int
    send_threads: int
    shared_buffers: int
    pull: int
    ptracer: str
    lanes: int
    host: str
    log_dir: str
    device: int
    secure: bool | str


_VARIABLES = {name: f"COMITY_{name.upper()}" for name in ("timeout", *Settings.__annotations__)}

# `secure` as a yes or no.
_SECURE = {True: "data", False: "handshake"}

_lock = threading.RLock()
# The groups of this process, by the name of their backend, and the process that made them.
_groups: dict[str, Group] = {}
_home = _process.pid


def is_available(backend: str = "any") -> bool:
    """Whether this backend can be used here: "mpi" and "jaccl" where their library is found, "nccl" where NCCL and a CUDA device are;
    unknown names cannot."""
    return backend in _BACKENDS and (backend not in _LOADED or _core.is_available(backend))


def init(
    backend: str = "any",
    strict: bool = False,
    *,
    timeout: float | None = None,
    key: bytes | str | None = None,
    **settings: Unpack[Settings],
) -> Group:
    """Meet the other ranks, and return the group of all of them.

    Rank and size come from the environment: the variables of ``comity launch``, mlx.launch, torchrun, Open MPI, MPICH or Slurm. Without
    them the group is this process alone; with ``strict`` that is an error. A second call with this backend returns the same group. If that
    was closed, or a call of it failed, the ranks meet anew: call this on every rank. If it raises, you may call it again; in a forked child
    of a rank it raises `ForkedError`.

    Args:
        backend: "any"; "shm" and "tcp" (MLX: "ring") allow one kind of link; "jaccl" puts RDMA first; with "mpi" MPI carries the data; with
            "nccl" calls also take arrays on the CUDA device `device` (by default the rank's number on its host), which NCCL moves.
        strict: Raise `ConfigError` when no launcher's variables are set.
        timeout: Seconds that a call may take; 300. With ``math.inf`` a call waits as long as all ranks live.
        key: The job's secret, as 32 bytes or 64 hexadecimal digits.
        join: True: join a job that runs, as one of its last ranks. Waits until the ranks form their group again (`Group.reform`). Give
            the job's `store`, `job` and key. A launcher sets ``COMITY_JOIN=1`` for it.
        settings: In place of the variable ``COMITY_...`` of that name: join_timeout, rank, size, store, job, key_file, insecure, detection,
            links, addrs, interfaces, ports, relay, mptcp, connect ("all" makes all links at start), connections, shared_buffers, lanes,
            host, log_dir, device, secure ("handshake"; "data" or True encrypts all that is sent). Any of them makes a new group.
    """
    if backend not in _BACKENDS:
        raise ConfigError(
            f"there is no backend {backend!r}; there are {', '.join(_BACKENDS)}",
            key="backend",
            value=str(backend),
        )
    variables: dict[str, str | None] = {}
    for name, value in {**settings, "timeout": timeout}.items():
        if name not in _VARIABLES:
            raise ConfigError(
                f"init has no setting {name!r}; there are {', '.join(_VARIABLES)}, key", key=name
            )
        if value is not None:
            variables[_VARIABLES[name]] = (
                _SECURE.get(value) if name == "secure" and isinstance(value, bool) else _text(value)
            )
    stands_for = _BACKENDS[backend]
    if stands_for is not None:
        variables[stands_for[0]] = stands_for[1]
    own = key is not None or any(v is not None for v in settings.values())
    with _lock:
        if own:
            return Group(_core.init(variables, strict=strict, key_bytes=_key(key)))
        _forget_after_fork()
        group = _groups.get(backend)
        alone = group is not None and group._raw.name == "alone"
        if group is not None and not group.closed and group._failed:
            # It will never do anything again: whoever asks for a group gets one that does.
            group.close()
        if group is None or group.closed or (strict and alone):
            group = Group(_core.init(variables, strict=strict))
            _groups[backend] = group
            if backend != "any" and ("any" not in _groups or _groups["any"].closed):
                _groups["any"] = group
        elif timeout is not None:
            group.timeout = timeout
        return group


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, list | tuple):
        return ",".join(str(v) for v in value)
    return "none" if value == math.inf else str(value)


def _key(key: bytes | str | None) -> bytes | None:
    if key is None:
        return None
    try:
        raw = bytes.fromhex(key) if isinstance(key, str) else bytes(key)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise ConfigError("a key is 32 bytes, or 64 hexadecimal digits", key="key")
    return raw


def _forget_after_fork() -> None:
    global _home  # noqa: PLW0603 - one value for the process
    if _home != _process.pid:
        # Its parent's groups are none of a forked child's; while they are there the core lets it make none of its own.
        _home = _process.pid
        _groups.clear()


def follow(old: Group, new: Group) -> None:
    """The functions that used `old` use the group that follows it."""
    with _lock:
        for name, group in _groups.items():
            # One group of the core may have two faces: `comity.mlx` has its own.
            if group._end is old._end:
                _groups[name] = new if type(new) is type(group) else type(group)(new._raw, new._end)


def current(like: Group) -> Group | None:
    """The group of `init` that is this one of the core, if there is one."""
    with _lock:
        return next((group for group in _groups.values() if group._end is like._end), None)


def default() -> Group:
    """The group that functions use when they are given none: what `init` returns."""
    group = _groups.get("any")
    return group if group is not None and not group._end.closed and _home == _process.pid else init()


def of(group: Group | None) -> Group:
    """The group that a call is for."""
    if group is None:
        return default()
    if not isinstance(group, Group):
        raise MisuseError(
            f"a group of Comity is needed, not {type(group).__module__}.{type(group).__qualname__}"
        )
    return group


# In the signatures below `options` are those of the method: out, async_, timeout. `stream` is MLX's; calls are made when they are
# written, so there is nothing to order on a stream.


def empty(shape: int | Sequence[int], dtype: Any = "float32", *, group: Group | None = None) -> Any:
    """`Group.empty` of the default group."""
    return of(group).empty(shape, dtype)


def all_reduce(
    x: Any,
    op: str = "sum",
    *,
    group: Group | None = None,
    out: Any = None,
    async_: bool = False,
    timeout: float | None = None,
    wire: str | None = None,
) -> Any:
    """See `Group.all_reduce`."""
    # Its options have names: to gather them and to spread them again takes as long as the rest of a small call.
    return of(group).all_reduce(x, op, out=out, async_=async_, timeout=timeout, wire=wire)


def reduce(x: Any, root: int = 0, op: str = "sum", *, group: Group | None = None, **options: Any) -> Any:
    """See `Group.reduce`."""
    return of(group).reduce(x, root, op, **options)


def broadcast(x: Any, root: int = 0, *, group: Group | None = None, **options: Any) -> Any:
    """See `Group.broadcast`."""
    return of(group).broadcast(x, root, **options)


def all_gather(x: Any, *, group: Group | None = None, stream: Any = None, **options: Any) -> Any:
    """See `Group.all_gather`."""
    return of(group).all_gather(x, **options)


def reduce_scatter(x: Any, op: str = "sum", *, group: Group | None = None, **options: Any) -> Any:
    """See `Group.reduce_scatter`."""
    return of(group).reduce_scatter(x, op, **options)


def gather(x: Any, root: int = 0, *, group: Group | None = None, **options: Any) -> Any:
    """See `Group.gather`."""
    return of(group).gather(x, root, **options)


def scatter(x: Any = None, root: int = 0, *, group: Group | None = None, **options: Any) -> Any:
    """See `Group.scatter`."""
    return of(group).scatter(x, root, **options)


def all_to_all(x: Any, *, group: Group | None = None, stream: Any = None, **options: Any) -> Any:
    """See `Group.all_to_all`."""
    return of(group).all_to_all(x, **options)


def send(x: Any, dst: int, *, group: Group | None = None, stream: Any = None, **options: Any) -> Any:
    """See `Group.send`."""
    return of(group).send(x, dst, **options)


def recv(
    shape: Sequence[int],
    dtype: Any,
    src: int,
    *,
    group: Group | None = None,
    stream: Any = None,
    **options: Any,
) -> Any:
    """See `Group.recv`."""
    return of(group).recv(shape, dtype, src, **options)


def sendrecv(x: Any, dst: int, src: int, *, group: Group | None = None, **options: Any) -> Any:
    """See `Group.sendrecv`."""
    return of(group).sendrecv(x, dst, src, **options)


def barrier(*, group: Group | None = None, **options: Any) -> Any:
    """See `Group.barrier`."""
    return of(group).barrier(**options)


def reform(*, group: Group | None = None, **options: Any) -> ReformOutcome:
    """See `Group.reform`. Functions use the new group from now on, where they used this one."""
    return of(group).reform(**options)


def joiners(*, group: Group | None = None) -> int:
    """See `Group.joiners`."""
    return of(group).joiners()


def sync(
    arrays: Sequence[Any], holds: bool, *, group: Group | None = None, timeout: float | None = None
) -> list[Any]:
    """See `Group.sync`."""
    return of(group).sync(arrays, holds, timeout=timeout)


def all_reduce_or_keep(
    x: Any, op: str = "sum", *, group: Group | None = None, timeout: float | None = None
) -> Any:
    """See `Group.all_reduce_or_keep`."""
    return of(group).all_reduce_or_keep(x, op, timeout=timeout)


def broadcast_object(
    obj: Any = None, root: int = 0, *, group: Group | None = None, allow_pickle: bool = False
) -> Any:
    """See `Group.broadcast_object`."""
    return of(group).broadcast_object(obj, root, allow_pickle=allow_pickle)


def all_gather_object(obj: Any, *, group: Group | None = None, allow_pickle: bool = False) -> list[Any]:
    """See `Group.all_gather_object`."""
    return of(group).all_gather_object(obj, allow_pickle=allow_pickle)


def scatter_object(
    objs: Sequence[Any] | None = None,
    root: int = 0,
    *,
    group: Group | None = None,
    allow_pickle: bool = False,
) -> Any:
    """See `Group.scatter_object`."""
    return of(group).scatter_object(objs, root, allow_pickle=allow_pickle)
