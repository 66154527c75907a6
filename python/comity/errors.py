"""Why an operation failed: one class for each kind of blame. All of them pickle."""

import builtins
from collections.abc import Iterable
from typing import ClassVar


class Error(RuntimeError):
    """A failed operation.

    Attributes:
        rank: The rank that the error is about, in the group of the call: the one that was lost, disagrees, gave up, was
            waited for, or made the mistake; None where there is none.
        call: The call under way, as ``all_reduce #812 f32[1048576] sum``; None outside of calls.
        cause: What was seen, without the names around it; None where the message says it all.

    After every error but `MisuseError`, `ConfigError` and `UnavailableError` the group stays failed, and later calls raise
    the same class again.
    """

    #: Attributes that a class adds, in the order of its parameters.
    _more: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        message: str = "",
        rank: int | None = None,
        call: str | None = None,
        cause: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.call = call
        self.cause = cause

    def __reduce__(self) -> tuple:
        more = (getattr(self, name) for name in self._more)
        return type(self), (str(self), self.rank, self.call, self.cause, *more)


class PeerLostError(Error):
    """A member's process or link is gone: `rank` says whose.

    Attributes:
        because_of: The members on whose account it gave up, where it said so; mostly empty.
        seen_by: Another member that saw it and told this one; None where this rank saw it itself.
        left: Whether it closed the group in good order, and a call still needed it.
    """

    _more = ("because_of", "seen_by", "left")

    def __init__(
        self,
        message: str = "",
        rank: int | None = None,
        call: str | None = None,
        cause: str | None = None,
        because_of: Iterable[int] = (),
        seen_by: int | None = None,
        left: bool = False,
    ) -> None:
        super().__init__(message, rank, call, cause)
        self.because_of = tuple(because_of)
        self.seen_by = seen_by
        self.left = left


class TimeoutError(Error, builtins.TimeoutError):
    """The operation did not finish in time: `rank` is the first that it waited for."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class MismatchError(Error):
    """Two ranks made different calls: `call` is this rank's, `rank` the other, `cause` what differs."""


class AbortedError(Error):
    """A rank gave up the group: `rank` says which, `cause` its words."""


class JoinError(Error):
    """Not all ranks came together in time.

    Attributes:
        ranks: Those at fault, by their numbers in the job: who is missing, or ended, gave up, or cannot be reached. Empty where no rank
            is known to be. `rank` is the first.
        cause: What became of them: "missing", "absent", "unreachable", "ended", "gave up" or "claimed"; None for anything else.
    """

    _more = ("ranks",)

    def __init__(
        self,
        message: str = "",
        rank: int | None = None,
        call: str | None = None,
        cause: str | None = None,
        ranks: Iterable[int] = (),
    ) -> None:
        super().__init__(message, rank, call, cause)
        self.ranks = tuple(ranks)


class ConfigError(Error, ValueError):
    """The configuration is incomplete or contradicts itself. Nothing was connected.

    Attributes:
        file: The file that it is about, as it was named.
        line: The line in the file where its form is wrong, from 1.
        column: The column in that line, from 1.
        key: The variable, or the setting's name where a program gave it.
        value: Its value, where it is to blame and no secret.

    What does not apply is None.
    """

    _more = ("file", "line", "column", "key", "value")

    def __init__(
        self,
        message: str = "",
        rank: int | None = None,
        call: str | None = None,
        cause: str | None = None,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        key: str | None = None,
        value: str | None = None,
    ) -> None:
        super().__init__(message, rank, call, cause)
        self.file = file
        self.line = line
        self.column = column
        self.key = key
        self.value = value


class MisuseError(Error, ValueError):
    """The caller broke a rule it could have checked: `rank` says whose mistake it is, None outside of groups. No byte moved; the group is
    unharmed."""


class UnavailableError(Error):
    """A backend cannot run here: its library, device or permission is missing."""


class LibraryError(Error):
    """A library outside Comity said no."""


class SystemCallError(Error):
    """The operating system refused something this process needs."""


class GroupClosedError(Error):
    """The group was closed by this process."""


class ForkedError(Error):
    """The group belongs to the process that this one was forked from, or that one is in a job, whose place this one cannot take."""


__all__ = [
    "AbortedError",
    "ConfigError",
    "Error",
    "ForkedError",
    "GroupClosedError",
    "JoinError",
    "LibraryError",
    "MismatchError",
    "MisuseError",
    "PeerLostError",
    "SystemCallError",
    "TimeoutError",
    "UnavailableError",
]
