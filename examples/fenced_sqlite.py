"""A write that only the present holder of a lease can make, into a database of your own (SQLite).

The database keeps the highest token it has seen. A write looks at it in its own transaction, so
that a holder that was frozen between its last look at the clock and its write is refused.
"""

from __future__ import annotations

import sqlite3

from lease import StaleTokenError

SCHEMA = """
CREATE TABLE IF NOT EXISTS payments (id TEXT PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS fences (name TEXT PRIMARY KEY, token INTEGER NOT NULL);
"""


def pay(connection: sqlite3.Connection, token: int, payment: str, cents: int) -> None:
    """Write a payment under `token`; raises `StaleTokenError` when a later holder was here.

    `connection` was opened with `isolation_level=None`, so that transactions begin here.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        row = connection.execute("SELECT token FROM fences WHERE name = 'payments'").fetchone()
        if row is not None and token < row[0]:
            raise StaleTokenError("payments", token, row[0])
        connection.execute("INSERT OR REPLACE INTO fences VALUES ('payments', ?)", (token,))
        connection.execute("INSERT OR IGNORE INTO payments VALUES (?, ?)", (payment, cents))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
