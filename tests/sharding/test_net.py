"""Coordinators that change and regions that come and go, over a network that loses, repeats and
delays: no shard is ever open twice, and in the end each has a home that all know.

Guards I-108, I-110, I-112, I-113, I-114, I-120 and F17.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.sharding.net import Net

KINDS = ("lead", "lead", "suspend", "lose", "blink", "crash", "stop", "leave", "rebalance")
STEPS = st.tuples(
    st.sampled_from([0.3, 1.0, 1.05, 1.4, 2.0, 2.6, 3.3, 4.0]),
    st.sampled_from(KINDS),
    st.sampled_from("abc"),
)
LASTS_S = 8.0
CALM_S = 20.0


def played(schedule: list[tuple[float, str, str]], seed: int, *, overtaking: bool) -> Net:
    """A run to its end."""
    net = Net("abc", schedule, seed=seed, overtaking=overtaking)
    net.run(LASTS_S)
    net.calm()
    net.run(LASTS_S + CALM_S)
    return net


@given(st.lists(STEPS, max_size=6), st.integers(0, 10_000), st.booleans())
def test_no_shard_is_open_twice_and_each_finds_a_home(
    schedule: list[tuple[float, str, str]], seed: int, overtaking: bool
) -> None:
    net = played(schedule, seed, overtaking=overtaking)
    assert net.breach is None
    assert net.flaws() == []
