"""The native module: private, and the only one that takes addresses. `comity` and `comity.torch` stand on it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

from comity.errors import Error

# A buffer: address, number of its type (see DTYPES), elements. The caller keeps its memory alive and unchanged until the
# call has ended; `start` does so itself through `hold`.
Buffer: TypeAlias = tuple[int, int, int]

# Where a call's buffers are, if not in host memory: the number of the CUDA device (None: the group's), and the stream whose order the
# work keeps, as a number. The caller keeps the stream alive until the call has ended.
OnDevice: TypeAlias = tuple[int | None, int]

# Rank, host, process id.
_Member: TypeAlias = tuple[int, str | None, int | None]

VERSION: str
# "f32" -> 11; the number is what a Buffer holds.
DTYPES: dict[str, int]
# Bytes of one element, by the number of the type.
SIZES: list[int]
# "sum", "product", "min", "max", "avg", "and", "or", "xor".
REDUCTIONS: dict[str, int]
# "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "send", "recv",
# "sendrecv", "barrier", ("split" and "reform", which are methods).
OPS: list[str]
MAX_TAG: int

def is_available(backend: str) -> bool:
    """Whether what a backend ("any", "mpi", "nccl") needs can be loaded here."""

def supports(dtype: int, reduce: str) -> bool:
    """Whether a reduction is defined on the type with this number."""

def init(
    variables: Mapping[str, str | None], *, strict: bool = False, key_bytes: bytes | None = None
) -> Group:
    """Meet the other ranks as the environment says, with `variables` in place of it where they say something (None: unset).

    Without a launcher's variables: a group of one, or `ConfigError` where `strict`.
    """

def init_with_store(
    rank: int,
    size: int,
    set: Callable[[str, str], Any],
    get: Callable[[str, float], str | bytes],
    *,
    prefix: str = "comity",
    variables: Mapping[str, str | None] | None = None,
) -> Group:
    """Meet the other ranks over a store such as torch's: no environment needed.

    Rank 0 calls `set(name, text)` (where it listens, and the job's key unless the environment gives one), the others
    `get(name, seconds)`, which blocks until the name is set, at most that long, and raises after. Both are called on another thread.
    `prefix` must not have been used before in this store. `variables` as in `init`: COMITY_TIMEOUT, COMITY_JOIN_TIMEOUT, COMITY_LINKS,
    COMITY_ADDRS, COMITY_DETECTION, ...
    """

def is_given_up() -> bool:
    """Whether the thread of `init_with_store` that calls `get` is to give up: a signal handler raised in the program's thread."""

def copy(from_: Buffer, to: Buffer, /) -> None:
    """Copy the bytes of one buffer to another of the same size."""

def post(job: Callable[[], Any], /) -> None:
    """Call `job` soon, on a thread of those that run callbacks: it may take long, and wait for later calls. What it raises goes to
    `sys.unraisablehook`."""

def run_cli(args: Sequence[str], interpreter: str) -> int:
    """The command `comity`; `args[0]` is the program's name. Returns the exit code."""

def know_numpy(ndarray: type, empty_like: Callable[[Any], Any], dtypes: Sequence[tuple[Any, int]], /) -> None:
    """What plain arrays are: of exactly this class, with one of these types, each with its number; `empty_like` makes another."""

@final
class Memory:
    """The memory of an object with the buffer protocol, kept in place as long as this lives."""

    def __new__(cls, object: object, /) -> Memory: ...
    @property
    def address(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def contiguous(self) -> bool: ...
    @property
    def readonly(self) -> bool: ...

@final
class SharedBytes:
    """Bytes that the other ranks of this host may read where they lie, with the buffer protocol."""

    @property
    def why_not(self) -> str | None:
        """Why it is ordinary memory, if it is."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Store:
    """A job's store. It ends when it is closed or dropped."""

    def __new__(
        cls, size: int, key: bytes, job: str, at: tuple[str, int], join_timeout: float, /
    ) -> Store: ...
    @property
    def address(self) -> str: ...
    def close(self) -> None: ...

@final
class Args:
    """The arguments of any operation beside its buffers; `Group.run` says which one takes which. They never change: one object serves
    any number of calls and threads. Raises `MisuseError` for a reduction that does not exist; each call checks the other values.
    """

    def __new__(
        cls,
        *,
        reduce: str | None = None,
        root: int | None = None,
        peer: int | None = None,
        source: int | None = None,
        tag: int = 0,
        counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        place: OnDevice | None = None,
        timeout: float | None = None,
        objects: bool = False,
        wire: str | None = None,
    ) -> Args:
        """`counts` and `recv_counts` are elements by rank, `timeout` seconds (None: the group's; infinity: no limit). `objects`: the call
        is a part of one that moves objects, and no call of arrays matches it. `wire`: "bf16", "f16" or "int8", for all_reduce,
        reduce_scatter and all_gather."""

    def replace(self, *, place: OnDevice | None = None, timeout: float | None = None) -> Args:
        """The same but for what is given."""

@final
class Group:
    """Ranks that call collectives together.

    Calls run one at a time in the order of `run` and `start`, from whatever threads, which must be the same on every rank. In a
    forked child every method raises `ForkedError`.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str:
        """For logs: "world", "alone" or the store's prefix, and "/color" for each split."""
    @property
    def device(self) -> int | None:
        """The CUDA device whose memory calls take, besides the host's."""
    timeout: float
    """How long a call may take, in seconds; 300, or COMITY_TIMEOUT; infinity where there is no limit. Holds for later calls."""

    def members(self) -> list[_Member]:
        """(rank, host, process id), by rank."""

    def link_kinds(self) -> list[str | None]:
        """The link to each rank ("shm", "tcp"), None for this one."""

    def alloc(self, bytes: int) -> SharedBytes:
        """So many bytes of zeros that the other ranks of this host may read where they lie."""

    def stats(self) -> dict[str, float]: ...
    def split(self, color: int | None, key: int = 0) -> Group | None:
        """Every rank calls this; ranks of one color form a group, by key and rank. None as color: no group."""

    def subgroup(self, members: Sequence[int], label: int, *, timeout: float | None = None) -> Group:
        """The group of these ranks, in this order, which only they make, also while calls of this group are under way. `timeout`: how long
        the others may take to come; also the new group's limit."""

    def joiners(self) -> int:
        """How many processes wait to be taken in."""

    def reform(
        self, fewest: int, store_decides: bool, *, timeout: float | None = None
    ) -> tuple[Group, list[tuple[_Member, str]], list[_Member]]:
        """The group that follows this one; who left, and why; who joined. `timeout`: how long the others may take."""

    def sync(self, buffers: Sequence[Buffer], holds: bool, *, timeout: float | None = None) -> int:
        """Give all ranks the buffers of those that hold them, in host memory. Returns the bytes that this rank received."""

    def close(self) -> None:
        """Leave: calls under way and later ones raise `GroupClosedError`. Waits for nobody."""

    def abort(self, why: str) -> None:
        """Give the group up on every rank: calls under way and later ones raise `AbortedError` with these words."""

    def all_reduce(self, x: Any, out: Any, reduce: str, /) -> Any:
        """An all_reduce of a plain array of NumPy (see `know_numpy`) into `out`, which may be `x`, or into a new one where that is None.
        Returns the array with the result; None where an argument is anything else or wrong, or calls are under way: then nothing has
        happened, and `run` has to see to it."""

    def run(
        self,
        op: str,
        inp: Buffer | None = None,
        out: Buffer | None = None,
        args: Args | None = None,
        /,
    ) -> None:
        """Make a call and wait for it, without the interpreter's lock; on this thread where no earlier call is under way.

        ============== ============================ ============================ ==========================================
        op             inp                          out                          args
        ============== ============================ ============================ ==========================================
        all_reduce     n, or None: in place         n                            reduce
        reduce         n, or None: in place         n, root only where inp is    reduce, root
        broadcast      n, read at the root only     n, not at the root if inp is root
        all_gather     n, or None: own part of out  n * size (or sum(counts))    counts
        reduce_scatter n * size, or None: out's all n (or counts[rank])          reduce, counts; in place: part `rank` of out
        gather         n                            n * size, root only          root
        scatter        n * size, root only          n                            root
        all_to_all     n * size, or None: in place  n * size                     counts and recv_counts, both or neither
        send           n                            None                         peer, tag
        recv           None                         n                            peer, tag
        sendrecv       n                            m                            peer (to), source (from), tag
        barrier        None                         None
        ============== ============================ ============================ ==========================================

        Input and output may also be the same memory (all_reduce, all_to_all), or one this rank's part of the other (all_gather,
        reduce_scatter); any other overlap is `MisuseError`.

        With `place` in `args`, the call returns when its work is on the stream. `MisuseError` has this process's rank.

        A signal handler that raises, as Ctrl-C does, ends the call within 200 ms: the group is aborted on every rank, with words that name
        the exception, and the exception goes on here.
        """

    def start(
        self,
        op: str,
        inp: Buffer | None = None,
        out: Buffer | None = None,
        args: Args | None = None,
        /,
        *,
        hold: object = None,
    ) -> Request:
        """As `run`, on the group's thread in its turn; returns at once. `hold` (what owns the memory) lives until the call has
        ended, whatever becomes of the request."""

@final
class Request:
    """A call under way. Dropping it lets the call go on."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end, and raise what the call failed with. After `timeout` seconds: `TimeoutError`; the call goes on.

        A signal handler that raises ends the wait within 200 ms and leaves the call under way: wait again, or abort the group."""

    def done(self) -> bool: ...
    def exception(self) -> Error | None:
        """What it failed with; None while it is under way and after it went well."""

    def add_done_callback(self, callback: Callable[[Error | None], Any], /) -> None:
        """Call `callback` with `exception()` when it has ended: on a thread for callbacks, which may wait for other calls; at
        once on this thread if it has ended already."""
