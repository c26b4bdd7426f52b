"""The exclusions of agents in lists and descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from detcloud.cli.commands.agent import EXCLUSION_COLUMN, _use_text

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
