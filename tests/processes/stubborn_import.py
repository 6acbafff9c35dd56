"""An application whose import takes long and swallows what ends it."""

from __future__ import annotations

from node import ActorSystem
from tests.processes.apps import hold_on

hold_on()


def setup(system: ActorSystem) -> None:
    """Never reached."""
