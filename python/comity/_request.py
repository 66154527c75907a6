"""Calls under way."""

from collections.abc import Callable, Generator
from typing import Any

from comity import _core


class Request:
    """A call under way on the group's thread; `wait`, or `await` it, for its result.

    Dropping it lets the call go on, since other ranks count on it. What the call works on stays alive until it has ended; do not
    change it before.
    """

    __slots__ = ("_has", "_raw", "_result", "_value")

    def __init__(self, raw: "_core.Request", result: Callable[[], Any]) -> None:
        self._raw = raw
        self._result = result
        self._has = False
        self._value: Any = None

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end; the call's result.

        Raises what the call failed with, and `comity.TimeoutError` when `timeout` seconds have passed: then the call goes on.
        Ctrl-C ends the wait and leaves the call under way.
        """
        self._raw.wait(timeout)
        if not self._has:
            self._value, self._has = self._result(), True
        return self._value

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._raw.done()

    def exception(self) -> BaseException | None:
        """What the call failed with; None while it is under way and after it went well."""
        return self._raw.exception()

    def add_done_callback(self, callback: Callable[["Request"], Any]) -> None:
        """Call `callback` with this request when it has ended, on a thread for callbacks; at once if it has ended already."""
        self._raw.add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._raw.done():
            # Who awaits has imported it; it takes longer to import than all of Comity.
            import asyncio

            loop = asyncio.get_running_loop()
            ended: asyncio.Future[None] = loop.create_future()

            def end() -> None:
                if not ended.done():
                    ended.set_result(None)

            def tell(_: object) -> None:
                # A loop that was closed meanwhile waits for nothing.
                if not loop.is_closed():
                    loop.call_soon_threadsafe(end)

            self._raw.add_done_callback(tell)
            yield from ended
        return self.wait()  # WAIT: a request that has ended, or whose call has a deadline

    def __repr__(self) -> str:
        return repr(self._raw).replace("comity._core.Request", "comity.Request")
