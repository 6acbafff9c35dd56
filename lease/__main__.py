"""`python -m lease`: look at leases, hold one, give one back."""

import sys

from lease.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
