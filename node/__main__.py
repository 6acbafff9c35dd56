"""`python -m node`: starts a member, or talks to one (status, members, leave)."""

from __future__ import annotations

import sys

from node.cli import main

if __name__ == "__main__":
    sys.exit(main())
