"""Run the checks of some modules in a rank: ``python -m ranks arrays_numpy objects``.

Every function ``check_*`` of a module gets the group. Ranks run the same checks in the same order.
"""

import importlib
import sys
import traceback

import comity


def main() -> int:
    modules = [importlib.import_module(f"ranks.{name}") for name in sys.argv[1:]]
    group = comity.init(strict=True, timeout=60)
    checks = [f for m in modules for name, f in vars(m).items() if name.startswith("check_")]
    for check in checks:
        try:
            check(group)
        except BaseException:
            traceback.print_exc()
            print(
                f"rank {group.rank} of {group.size}: {check.__module__}.{check.__name__} failed",
                file=sys.stderr,
            )
            group.abort(f"{check.__name__} failed")
            return 1
    if group.rank == 0:
        print(f"{len(checks)} checks")
    return 0


sys.exit(main())
