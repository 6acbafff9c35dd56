"""An application whose import takes long: it loads a model, or waits for a database."""

from __future__ import annotations

from node import ActorSystem
from tests.processes.apps import hold

hold()


def setup(system: ActorSystem) -> None:
    """Never reached."""
