"""How large the races of the contract are in our own tests."""

from __future__ import annotations

from typing import TypeVar

import pytest

from lease.conformance import LeaseStoreContract

T = TypeVar("T", bound=type[LeaseStoreContract])

RACERS, ROUNDS = 8, 40


def small_or_whole(contract: T) -> T:
    """The numbers of the contract with `--long`; smaller ones without."""

    @pytest.fixture(autouse=True)
    def _sized(self: LeaseStoreContract, request: pytest.FixtureRequest) -> None:
        if not request.config.getoption("--long"):
            self.racers, self.race_rounds = RACERS, ROUNDS  # type: ignore[misc]

    contract._sized = _sized  # type: ignore[attr-defined]
    return contract
