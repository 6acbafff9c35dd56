"""examples/fenced_postgresql.sql against a real server."""

from __future__ import annotations

import pytest

from tests.servers.postgresql import Postgresql
from tests.style.sources import ROOT

SQL = (ROOT / "examples" / "fenced_postgresql.sql").read_text()
TABLES = "".join(
    line.removeprefix("--").strip() for line in SQL.splitlines() if "CREATE TABLE" in line
)


@pytest.mark.etcd
def test_an_older_token_is_refused_in_the_same_statement() -> None:
    with Postgresql() as server:
        server.ask(TABLES)
        assert server.ask(SQL, token=7, payment="p1", cents=100) == ["p1"]
        assert server.ask(SQL, token=9, payment="p2", cents=200) == ["p2"]
        assert server.ask(SQL, token=9, payment="p2", cents=999) == ["p2"], "it was written before"
        assert server.ask(SQL, token=7, payment="p3", cents=300) == []
        assert server.ask("SELECT id, cents FROM payments ORDER BY id") == ["p1|100", "p2|200"]
        assert server.ask("SELECT token FROM fences") == ["9"]
