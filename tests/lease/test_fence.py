"""The guard of a resource: older tokens are refused, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from lease import Fence, StaleTokenError


def test_an_older_token_is_refused_and_the_same_one_passes() -> None:
    fence = Fence()
    for token in (9, 9, 10, 100):
        fence.check("printer", token)
    with pytest.raises(StaleTokenError, match="token 99 of 'printer' is refused") as refused:
        fence.check("printer", 99)
    assert (refused.value.token, refused.value.highest) == (99, 100)
    assert fence.highest("printer") == 100
    fence.check("other", 1)


def test_it_goes_on_from_what_was_stored() -> None:
    fence = Fence({"printer": 7})
    with pytest.raises(StaleTokenError):
        fence.check("printer", 6)
    assert fence.highest("unknown") is None


@pytest.mark.parametrize("token", ["10", 9.5, True, b"9"])
def test_what_is_no_number_is_refused(token: Any) -> None:
    """Texts compare letter by letter: "10" would be older than "9"."""
    with pytest.raises(TypeError, match="is no whole number"):
        Fence().check("printer", token)


def test_without_a_lease_there_is_no_token() -> None:
    with pytest.raises(ValueError, match="there is no token"):
        Fence().check("printer", None)
