"""The exclusions of agents in lists and descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from detcloud.cli.commands.agent import COLUMNS, EXCLUSION_COLUMN, OCCUPANCY_COLUMN, _use_text

EXCLUSION = {"reason": "the link is bad", "since_ms": 0, "until_ms": 3_600_000}


@pytest.mark.parametrize(
    ("fields", "use"),
    [
        ({}, "enabled"),
        ({"exclusions": []}, "enabled"),
        ({"exclusions": [EXCLUSION]}, "excluded"),
        # A user's setting is shown before an exclusion.
        ({"exclusions": [EXCLUSION], "enabled": False}, "disabled"),
        ({"exclusions": [EXCLUSION], "enabled": False, "draining": True}, "draining"),
    ],
)
def test_use_of_an_agent_names_exclusions(fields: dict[str, Any], use: str) -> None:
    assert _use_text(fields) == use


def test_description_has_the_end_and_the_reason() -> None:
    text = EXCLUSION_COLUMN.value({"exclusions": [EXCLUSION]})
    assert text == "until 1970-01-01 01:00:00+0000: the link is bad"
    # An older cluster sends no exclusions.
    assert EXCLUSION_COLUMN.value({}) is None


OCCUPANCY = {"reason": "somebody is logged in", "since_ms": 0, "running": "checkpoint"}


def test_description_has_the_use_by_people() -> None:
    assert _use_text({"occupancy": OCCUPANCY}) == "occupied"
    assert _use_text({"occupancy": OCCUPANCY, "enabled": False}) == "disabled"
    assert OCCUPANCY_COLUMN.value({"occupancy": OCCUPANCY}) == (
        "since 1970-01-01 00:00:00+0000: somebody is logged in; running trials leave with a "
        "checkpoint"
    )
    finishing = {"occupancy": {**OCCUPANCY, "running": "finish"}}
    assert str(OCCUPANCY_COLUMN.value(finishing)).endswith("running trials finish")
    # An older cluster sends no use by people.
    assert OCCUPANCY_COLUMN.value({}) is None


def test_devices_are_counted_with_their_memory() -> None:
    slots = [
        {"type": "cuda", "name": "A100 MIG 1g.5gb", "memory_mib": 5120},
        {"type": "cuda", "name": "A100 MIG 1g.5gb", "memory_mib": 5120},
        {"type": "cuda", "name": "H100", "memory_mib": 81559},
        # An older cluster sends no memory.
        {"type": "cpu", "name": "CPU"},
    ]
    column = next(column for column in COLUMNS if column.title == "Devices")
    expected = "2 A100 MIG 1g.5gb of 5.0 GiB, 1 H100 of 79.6 GiB, 1 CPU"
    assert column.value({"slots": slots}) == expected
    assert column.value({"slots": []}) is None
