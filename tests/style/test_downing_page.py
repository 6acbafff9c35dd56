"""docs/downing.md says what is so: strategies, timings, metrics, planted faults, exit codes."""

from __future__ import annotations

import re

import pytest

from downing.machine import BY_OPERATOR_EXIT, DOWNED_EXIT
from downing.strategies import STRATEGIES, parse
from node.settings import Settings
from node.testkit.sabotage import SABOTAGES
from tests.style.sources import ROOT

PAGE = (ROOT / "docs" / "downing.md").read_text()


def section(title: str) -> str:
    """The text below a heading of the second rank."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_table_has_each_strategy_and_can_be_typed() -> None:
    """Every strategy once, in the order of the code, with a text that a flag takes."""
    shown = re.findall(r"^\| `([^`]+)`", section("Strategies"), re.MULTILINE)
    assert [text.partition(":")[0] for text in shown] == list(STRATEGIES)
    for text in shown:
        assert parse(text.replace("HOST:PORT", "10.0.0.1:25520")) is not None


@pytest.mark.parametrize("preset", ["local", "lan", "wan"])
def test_the_timings_are_those_of_the_presets(preset: str) -> None:
    """Both flags, by preset."""
    timings = Settings(preset=preset).downing_settings()
    column = 1 if preset == "wan" else 0
    rows = re.findall(r"^\| `--([a-z-]+)` \| (\S+) \| (\S+) \|", section("Timings"), re.MULTILINE)
    assert {flag: values[column] for flag, *values in rows} == {
        "contact-s": f"{timings.contact_s:g}",
        "down-after-s": f"{timings.down_after_s:g}",
    }


def test_metrics_and_history_are_spelt_as_they_are_written() -> None:
    """What an alarm is put on exists."""
    metrics = (ROOT / "node" / "metrics.py").read_text()
    text = section("What an operator sees")
    for name in ("contact_wanted", "contact_held", "contact_remaining_s", "downing_doomed"):
        assert f'gauge("{name}"' in metrics
        assert f"_{name}`" in text
    system = (ROOT / "node" / "system.py").read_text()
    for event in ("authority_lost", "authority_gained", "downing_decided", "downing_unsettled"):
        assert f'"{event}"' in system
        assert f"`{event}`" in text


def test_exit_codes_and_planted_faults_are_all_there() -> None:
    """Those of the code."""
    words = " ".join(PAGE.split())
    assert f"exits with **{DOWNED_EXIT}**" in words
    assert f"exits with **{BY_OPERATOR_EXIT}**" in words
    assert all(f"`{name}`" in section("How it is checked") for name in SABOTAGES)
