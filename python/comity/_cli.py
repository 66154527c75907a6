"""The console script `comity`: the same command as the Rust binary."""

import signal
import sys

from comity import _core


def main() -> int:
    """Run the command with this process's arguments."""
    # The command has its own handlers where it needs some; elsewhere Ctrl-C ends it as it ends any program.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.run_cli(sys.argv, sys.executable)


if __name__ == "__main__":
    sys.exit(main())
