"""The other processes of a test, gone when it ends."""

from tests.processes.conftest import members

__all__ = ["members"]
