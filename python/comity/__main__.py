"""`python -m comity`: the command `comity`."""

import sys

from comity._cli import main

if __name__ == "__main__":
    sys.exit(main())
