"""The largest reports of agents and processes about a run: hangs, checks and lines of logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from control_plane.actors.messages.trial_gang_checks import (
    DEVICE_CHARACTERS_MAX,
    FAULTS_MAX,
    TEXT_CHARACTERS_MAX,
    GangCheckReported,
)
from control_plane.actors.messages.trial_hangs import (
    PLACE_CHARACTERS_MAX,
    PLACES_MAX,
    HangReported,
    HangTimeOver,
    StacksReported,
)
from control_plane.actors.messages.trial_logs import LOG_ACTIONS, LogPolicyMatched
from control_plane.agents.reports import LOG_LINE_CHARACTERS_MAX
from control_plane.config.log_policies import NAME_CHARACTERS_MAX
from detcloud.shared.line_patterns.syntax import PATTERN_CHARACTERS_MAX

NODE_LAST = 28
"""The rank of the last node of the largest gang."""


def text(length: int) -> str:
    """Return text that compresses badly."""
    return Random(length).randbytes(length // 2 + 1).hex()[:length]


RUN_REPORTS: Mapping[type, Callable[[], object]] = {
    HangReported: lambda: HangReported(1, 1 << 53, 1 << 53),
    StacksReported: lambda: StacksReported(
        1, tuple((rank, text(PLACE_CHARACTERS_MAX)) for rank in range(PLACES_MAX))
    ),
    HangTimeOver: lambda: HangTimeOver(1, 1),
    GangCheckReported: lambda: GangCheckReported(
        1,
        1e9,
        text(DEVICE_CHARACTERS_MAX),
        tuple(range(FAULTS_MAX)),
        tuple((rank, NODE_LAST) for rank in range(FAULTS_MAX)),
        text(TEXT_CHARACTERS_MAX),
    ),
    LogPolicyMatched: lambda: LogPolicyMatched(
        1,
        text(PATTERN_CHARACTERS_MAX),
        text(LOG_LINE_CHARACTERS_MAX),
        text(NAME_CHARACTERS_MAX),
        LOG_ACTIONS,
        text(NAME_CHARACTERS_MAX),
        text(NAME_CHARACTERS_MAX),
        NODE_LAST,
        NODE_LAST,
    ),
}
