"""Run a script, or with `-m` a module, that was written for `mx.distributed`, with Comity in its place::

comity launch -n 2 -- python -m comity.mlx script.py [args]
comity launch -n 2 -- python -m comity.mlx -m mlx_lm lora [args]
"""

import os
import runpy
import sys

_USAGE = "usage: python -m comity.mlx script.py [args], or: python -m comity.mlx -m module [args]"


def main(args: list[str]) -> int:
    """Run what the arguments name, as `python` does."""
    module = args[:1] == ["-m"]
    rest = args[1:] if module else args
    if not rest or rest[0].startswith("-"):
        print(_USAGE, file=sys.stdout if rest[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if rest[:1] in (["-h"], ["--help"]) else 2
    from comity.mlx import replace

    replace()
    sys.argv = rest
    if module:
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return 0
    if not os.path.exists(rest[0]):
        print(f"python -m comity.mlx: there is no file {rest[0]!r}", file=sys.stderr)
        return 2
    sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))
    runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
