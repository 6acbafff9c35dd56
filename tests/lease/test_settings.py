"""What a lease can not be made of, and what is believed of a record that others wrote."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lease import LeaseRecord, LeaseSettings
from lease.record import MAX_TTL_S, holder_id, store_remaining_s, trusted_ttl_s
from tests.lease.pieces import record


def test_the_times_follow_the_ttl() -> None:
    settings = LeaseSettings(name="n", owner="o", ttl_s=15.0)
    assert (settings.renewal_s, settings.margin_s, settings.valid_s) == (5.0, 2.5, 12.5)
    assert settings.drain_s == 2.5


def test_there_is_room_between_a_renewal_and_the_risk() -> None:
    """Where the margin is wide, what is left is shared."""
    settings = LeaseSettings(name="n", owner="o", ttl_s=15.0, margin_s=6.0, renewal_s=4.0)
    assert settings.drain_s == 2.5


@pytest.mark.parametrize("missing", ["name", "owner", "ttl_s"])
def test_there_is_no_lease_without_name_owner_and_ttl(missing: str) -> None:
    """I-1."""
    fields: dict[str, Any] = {"name": "n", "owner": "o", "ttl_s": 15.0}
    del fields[missing]
    with pytest.raises(TypeError, match=missing):
        LeaseSettings(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"owner": None}, "owner"),
        ({"owner": "x" * 257}, "owner"),
        ({"ttl_s": math.nan}, "ttl_s"),
        ({"ttl_s": 0.0}, "ttl_s"),
        ({"ttl_s": math.inf}, "ttl_s"),
        ({"ttl_s": "15"}, "ttl_s"),
        ({"ttl_s": True}, "ttl_s"),
        ({"ttl_s": MAX_TTL_S + 1}, "ttl_s"),
        ({"renewal_s": 7.0}, "renewal_s"),
        ({"renewal_s": math.nan}, "renewal_s"),
        ({"margin_s": 0.1}, "margin_s"),
        ({"margin_s": -1.0}, "margin_s"),
        ({"margin_s": 14.0}, "renewal_s"),
        ({"drain_s": 7.5}, "drain_s"),
        ({"drain_s": -1.0}, "drain_s"),
        ({"drain_s": math.nan}, "drain_s"),
        ({"acquire_retry_interval_s": 0.0}, "acquire_retry_interval_s"),
        ({"acquire_retries": -1}, "acquire_retries"),
        ({"acquire_retries": 1.5}, "acquire_retries"),
    ],
)
def test_what_cannot_work_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    """I-1, I-12: nothing that never expires, nothing that others would cut short."""
    with pytest.raises(ValueError, match=named):
        LeaseSettings(**dict[str, Any](name="n", owner="o", ttl_s=15.0) | fields)


def test_the_owner_is_read_from_the_holder() -> None:
    assert record("1", holder=holder_id("pod#7", "ab12")).owner == "pod#7"
    assert record("1", holder="written by hand").owner == "written by hand"
    assert record("1", holder="").free


@pytest.mark.parametrize("ttl_s", [math.nan, math.inf, -math.inf, 0, -3, 1e12, None, "15", True])
def test_a_damaged_ttl_is_the_longest(ttl_s: Any) -> None:
    """I-12, I-13."""
    assert trusted_ttl_s(record("1", ttl_s=ttl_s)) == MAX_TTL_S


@pytest.mark.parametrize(
    ("fields", "remaining_s"),
    [
        ({"clock": "ours", "written_at": 90.0}, 5.0),
        ({"clock": "ours", "written_at": 80.0}, -5.0),
        ({"clock": "theirs", "written_at": 90.0}, None),
        ({"clock": "", "written_at": 90.0}, None),
        ({"clock": "ours", "written_at": 101.0}, None),  # has not come yet
        ({"clock": "ours", "written_at": math.nan}, None),
        ({"clock": "ours", "written_at": -math.inf}, None),
        ({"clock": "ours", "written_at": "90"}, None),
    ],
)
def test_only_an_instant_of_our_own_clock_counts(
    fields: dict[str, Any], remaining_s: float | None
) -> None:
    """I-23: and one that is none makes nobody's lease old (I-13)."""
    found: LeaseRecord = record("1", **fields)
    assert store_remaining_s(found, "ours", 100.0) == remaining_s
    assert store_remaining_s(found, "", 100.0) is None
