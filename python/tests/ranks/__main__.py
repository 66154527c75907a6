"""Run the checks of one module in a rank: ``python -m ranks arrays_numpy``.

Every function ``check_*`` of the module gets the group. Ranks run the same checks in the same order.
"""

import importlib
import sys
import traceback

import comity


def main() -> int:
    module = importlib.import_module(f"ranks.{sys.argv[1]}")
    group = comity.init(strict=True, timeout=60)
    checks = [f for name, f in vars(module).items() if name.startswith("check_")]
    for check in checks:
        try:
            check(group)
        except BaseException:
            traceback.print_exc()
            print(f"rank {group.rank} of {group.size}: {check.__name__} failed", file=sys.stderr)
            group.abort(f"{check.__name__} failed")
            return 1
    if group.rank == 0:
        print(f"{len(checks)} checks")
    return 0


sys.exit(main())
