"""Comity under ``ray.util.collective``: actors of Ray pass arrays in host memory to one another.

Register the backend in the driver and in each actor, then name it where Ray asks for one::

    import comity.ray

    comity.ray.register()
    collective.create_collective_group(workers, 4, [0, 1, 2, 3], backend="comity", group_name="grads")

The ranks find one another through Ray's own key-value store; there is nothing else to set up. What Comity raises in an actor reaches
whoever asks Ray for the result: ``ray.get`` raises an exception that is also a `comity.PeerLostError`, with its `rank`.

Importing this imports Ray: 2.56 or newer.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import ray
from ray.experimental import internal_kv
from ray.util import collective
from ray.util.collective import types
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from comity import _core
from comity._group import Group
from comity.errors import JoinError, MisuseError, UnavailableError

__all__ = ["ComityGroup", "register"]

# Ray writes the names of backends so, whatever it is given.
NAME = "COMITY"
# Ray's reductions, and what Comity calls them.
_REDUCTIONS = {
    types.ReduceOp.SUM: "sum",
    types.ReduceOp.PRODUCT: "product",
    types.ReduceOp.MIN: "min",
    types.ReduceOp.MAX: "max",
}
# Seconds between two looks at Ray's store: the first, and the longest. Many ranks may look at once.
_FIRST_LOOK = 0.005
_LONGEST_LOOK = 0.1
# Seconds that rank 0 waits for its last answer to be put there: it is one call of Ray's store.
_LONGEST_ANSWER = 10.0
# Comity's part of Ray's store.
_STORE = "comity"


def register() -> None:
    """Make Comity known to Ray in this process, as the backend "comity". A second call does nothing.

    Every process needs it: the driver before ``create_collective_group``, an actor before its first call on the group.

    Raises:
        ValueError: Something else is registered under this name.
        comity.UnavailableError: This Ray is older than 2.56 and takes no backends.
    """
    if not hasattr(collective, "register_collective_backend"):
        raise UnavailableError(f"comity.ray needs Ray 2.56 or newer, and this is {ray.__version__}")
    try:
        collective.register_collective_backend(NAME, ComityGroup)
    except ValueError:
        from ray.util.collective.backend_registry import BackendRegistry

        if BackendRegistry().get(NAME) is not ComityGroup:
            raise


class ComityGroup(BaseGroup):
    """A group of Ray's actors whose calls Comity carries out. Ray makes it; see `register`.

    Calls take and fill arrays of NumPy and torch's tensors in host memory, of Comity's types, which need not be contiguous. Ray hands each
    array over in a list of one. All calls block, and may take as long as the group's limit (``COMITY_TIMEOUT`` of the actor's
    environment, else 300 s), or as the `timeout_ms` of their options.

    Any call raises the errors of `comity.Group`: `PeerLostError` when an actor is gone, `TimeoutError` at the limit, `MismatchError`
    when ranks make different calls. After each of these the group has failed on every rank: destroy it, and make another. `MisuseError`,
    for arrays that no call takes, leaves it as it was.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        """Meet the other ranks of the group with this name.

        Raises:
            comity.JoinError: Not all came within the join limit (``COMITY_JOIN_TIMEOUT``, else 60 s); `ranks` says who is missing.
        """
        super().__init__(world_size, rank, group_name)
        self._group = Group(_meet(world_size, rank, group_name))

    @property
    def group(self) -> Group:
        """The group of Comity beneath, for what Ray has no call for: ``get_group_handle("grads").group.all_to_all(x)``."""
        return self._group

    @classmethod
    def backend(cls) -> str:
        """Ray's word for this kind of group."""
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Whether it can be used here: wherever this module can be imported."""
        return True

    def destroy_group(self) -> None:
        """Leave the group. The others learn of it when a call of theirs needs this rank.

        Raises:
            comity.MismatchError: The ranks made different calls, and no call has shown it.
        """
        self._group.close()

    def allreduce(self, tensor: list[Any], allreduce_options: types.AllReduceOptions | None = None) -> None:
        """Combine the array across ranks, in place."""
        x = self._one("allreduce", tensor)
        op = self._reduction("allreduce", allreduce_options)
        self._group.all_reduce(x, op, out=x, timeout=_limit(allreduce_options))

    def barrier(self, barrier_options: types.BarrierOptions | None = None) -> None:
        """Return once every rank has called this."""
        self._group.barrier(timeout=_limit(barrier_options))

    def reduce(self, tensor: list[Any], reduce_options: types.ReduceOptions | None = None) -> None:
        """Combine the array across ranks, in place on `root_rank`; the other ranks' stay as they are."""
        x = self._one("reduce", tensor)
        options = reduce_options or types.ReduceOptions()
        root = options.root_rank
        out = x if root == self.rank else None
        self._group.reduce(x, root, self._reduction("reduce", options), out=out, timeout=_limit(options))

    def broadcast(self, tensor: list[Any], broadcast_options: types.BroadcastOptions | None = None) -> None:
        """Fill the array with that of `root_rank`, of the same shape and type."""
        x = self._one("broadcast", tensor)
        options = broadcast_options or types.BroadcastOptions()
        self._group.broadcast(x, options.root_rank, out=x, timeout=_limit(options))

    def allgather(
        self,
        tensor_list: list[list[Any]],
        tensor: list[Any],
        allgather_options: types.AllGatherOptions | None = None,
    ) -> None:
        """Fill array r of the inner list with rank r's: one for each rank, of the shape, type and framework of `tensor`."""
        x = self._one("allgather", tensor)
        parts = self._many("allgather", tensor_list, x)
        whole = self._group.all_gather(x.reshape(-1), timeout=_limit(allgather_options))
        for part, come in zip(parts, whole.reshape(self.world_size, -1), strict=True):
            _fill(part, come)

    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[list[Any]],
        reducescatter_options: types.ReduceScatterOptions | None = None,
    ) -> None:
        """Combine the inner lists across ranks, and fill the array with entry `rank` of the result.

        The list has one array for each rank, of the shape, type and framework of `tensor`; they stay as they are.
        """
        x = self._one("reducescatter", tensor)
        parts = self._many("reducescatter", tensor_list, x)
        op = self._reduction("reducescatter", reducescatter_options)
        result = self._group.reduce_scatter(_joined(parts), op, timeout=_limit(reducescatter_options))
        _fill(x, result)

    def send(self, tensor: list[Any], send_options: types.SendOptions) -> None:
        """Send the array to `dst_rank`, which receives it. Returns when it may be changed again."""
        x = self._one("send", tensor, send_options)
        self._group.send(x, send_options.dst_rank, timeout=_limit(send_options))

    def recv(self, tensor: list[Any], recv_options: types.RecvOptions) -> None:
        """Fill the array with what `src_rank` sends, of the same size and type."""
        x = self._one("recv", tensor, recv_options)
        self._group.recv_like(x, recv_options.src_rank, out=x, timeout=_limit(recv_options))

    def _one(self, op: str, arrays: Sequence[Any], options: Any = None) -> Any:
        """The array of a list of one."""
        if len(arrays) != 1 or getattr(options, "n_elements", 0):
            raise self._misuse(op, f"{op} takes one whole array; calls of several GPUs are not supported")
        return self._checked(op, arrays[0])

    def _many(self, op: str, lists: Sequence[Sequence[Any]], like: Any) -> Sequence[Any]:
        """The arrays of the one list, which are like this one."""
        if len(lists) != 1 or len(lists[0]) != self.world_size:
            raise self._misuse(op, f"{op} takes one list with an array for each of {self.world_size} ranks")
        for number, x in enumerate(lists[0]):
            self._checked(op, x)
            if _is_tensor(x) != _is_tensor(like) or x.dtype != like.dtype or x.shape != like.shape:
                raise self._misuse(op, f"{op}: array {number} of the list is {_words(x)}, not {_words(like)}")
        return lists[0]

    def _checked(self, op: str, x: Any) -> Any:
        """The array, which is in host memory."""
        if isinstance(x, np.ndarray) or (_is_tensor(x) and x.device.type == "cpu"):
            return x
        raise self._misuse(
            op, f"{op} takes arrays of NumPy and torch's tensors in host memory, not {_words(x)}"
        )

    def _reduction(self, op: str, options: Any) -> str:
        """Comity's word for the reduction that the options name; without options, a sum."""
        wanted = types.ReduceOp.SUM if options is None else options.reduceOp
        try:
            return _REDUCTIONS[wanted]
        except KeyError:
            raise self._misuse(op, f"{op}: Comity has no reduction {wanted!r}") from None

    def _misuse(self, op: str, words: str) -> MisuseError:
        """A mistake of this rank in a call."""
        return MisuseError(words, self.rank, op)


def _is_tensor(x: Any) -> bool:
    # Who passes a tensor has imported torch.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _words(x: Any) -> str:
    """What an array is, for a message."""
    where = f" on {x.device}" if _is_tensor(x) and x.device.type != "cpu" else ""
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    return f"{kind}[{x.dtype}]{tuple(x.shape)}{where}" if hasattr(x, "dtype") else kind


def _joined(arrays: Sequence[Any]) -> Any:
    """The elements of all arrays, one after the other, as a new vector."""
    if _is_tensor(arrays[0]):
        return sys.modules["torch"].cat([a.detach().reshape(-1) for a in arrays])
    return np.concatenate([a.reshape(-1) for a in arrays])


def _fill(x: Any, elements: Any) -> None:
    """Copy a vector of as many elements into the array, whatever its strides."""
    if _is_tensor(x):
        x.detach().copy_(elements.reshape(x.shape))
    else:
        np.copyto(x, elements.reshape(x.shape))


def _limit(options: Any) -> float | None:
    """Seconds that a call may take, where its options say so; Ray marks options that do not by less than nothing."""
    limit = getattr(options, "timeout_ms", None)
    seconds = limit.total_seconds() if limit is not None else -1.0
    return seconds if seconds >= 0 else None


# The ranks meet. Ray's store keeps what is put into it, a name may serve one group after the other, and an actor may die on the way. So
# nothing that lies there already is believed: each rank asks with a word that it has just made up, and rank 0 answers to that word. Both
# take away what they put there once they have met, so that the job's key does not stay.


def _meet(size: int, rank: int, name: str) -> Any:
    """The core's group of the ranks that come under this name."""
    # A group's name belongs to a namespace of Ray, as those of actors do.
    place = f"{quote(ray.get_runtime_context().namespace, safe='')}/{quote(name, safe='')}"
    meeting = _Answers(place) if rank == 0 else _Question(place, rank, name)
    try:
        return _core.init_with_store(rank, size, meeting.set, meeting.get, prefix=f"ray/{name}")
    except JoinError:
        # What a store raises reaches the core as words; here it is known whom it is about.
        if meeting.late is not None:
            raise meeting.late from None
        raise
    finally:
        meeting.close()


class _Answers:
    """Rank 0's side: a thread that answers whoever asks, until all have met."""

    def __init__(self, place: str) -> None:
        self._prefix = f"ask/{place}/"
        self._texts: dict[str, str] = {}
        self._answered: set[bytes] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="comity-ray", daemon=True)
        self.late: JoinError | None = None

    def set(self, key: str, text: str) -> None:
        """Answer with this text from now on. It holds the job's key: it goes nowhere else."""
        self._texts[_last(key)] = text
        if self._thread.ident is None:
            self._thread.start()

    def get(self, key: str, left: float) -> str:
        """Rank 0 asks nobody."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop, and take the answers away, also those that nobody has read."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(_LONGEST_ANSWER)
        for asked in list(self._answered):
            _delete(_answer(asked))

    def _run(self) -> None:
        look = _FIRST_LOOK
        while not self._over.wait(look):
            asked = internal_kv._internal_kv_list(self._prefix, namespace=_STORE)
            new = set(asked) - self._answered
            for key in new:
                text = self._texts.get(_last(key.decode()))
                if text is not None:
                    # Noted before: what is put there is taken away whatever happens.
                    self._answered.add(key)
                    internal_kv._internal_kv_put(_answer(key), text, namespace=_STORE)
            look = _FIRST_LOOK if new else min(2 * look, _LONGEST_LOOK)


class _Question:
    """Another rank's side."""

    def __init__(self, place: str, rank: int, name: str) -> None:
        self._ask = f"ask/{place}/{rank}/{secrets.token_hex(16)}"
        self._asked: set[bytes] = set()
        self._rank, self._name = rank, name
        #: Rank 0 did not come in time.
        self.late: JoinError | None = None

    def set(self, key: str, text: str) -> None:
        """Only rank 0 has something to tell."""
        raise NotImplementedError

    def get(self, key: str, left: float) -> bytes:
        """Rank 0's text, as soon as it is there, within so many seconds."""
        asked = f"{self._ask}/{_last(key)}".encode()
        until = time.monotonic() + left
        self._asked.add(asked)
        internal_kv._internal_kv_put(asked, b"", namespace=_STORE)
        look = _FIRST_LOOK
        while time.monotonic() < until:
            text = internal_kv._internal_kv_get(_answer(asked), namespace=_STORE)
            if text is not None:
                return text
            time.sleep(look)
            look = min(2 * look, _LONGEST_LOOK)
        words = f"rank {self._rank} waited {left:.0f} s for rank 0 to come to group {self._name!r}"
        self.late = JoinError(words, rank=0, cause="absent", ranks=[0])
        raise self.late

    def close(self) -> None:
        """Take away what was asked, and the answer."""
        for asked in self._asked:
            _delete(asked)
            _delete(_answer(asked))


def _last(key: str) -> str:
    """What tells apart the texts that one meeting passes."""
    return key.rpartition("/")[2]


def _answer(asked: bytes) -> bytes:
    """Where the answer to a question lies."""
    return b"answer" + asked.removeprefix(b"ask")


def _delete(key: bytes) -> None:
    internal_kv._internal_kv_del(key, namespace=_STORE)
