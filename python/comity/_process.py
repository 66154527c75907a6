"""The number of this process, without a system call for each look: small calls ask whether they are in a forked child."""

import os

pid = os.getpid()


def _forked() -> None:
    global pid  # noqa: PLW0603 - one value for the process
    pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
