"""The largest reports of agents and processes about a run, such as metrics, hangs and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from control_plane.actors.messages import trial as to_trial
from control_plane.actors.messages.trial_alerts import AlertReported
from control_plane.actors.messages.trial_gang_checks import (
    DEVICE_CHARACTERS_MAX,
    FAULTS_MAX,
    TEXT_CHARACTERS_MAX,
    GangCheckReported,
    GangMeetingDelayed,
)
from control_plane.actors.messages.trial_hangs import (
    PLACE_CHARACTERS_MAX,
    PLACES_MAX,
    HangReported,
    HangTimeOver,
    StacksReported,
)
from control_plane.actors.messages.trial_logs import LOG_ACTIONS, LogPolicyMatched
from control_plane.actors.messages.trial_use import LowUseReported, UseReported
from control_plane.actors.use import Use
from control_plane.agents.reports import (
    ALERT_CHARACTERS_MAX,
    LOG_LINE_CHARACTERS_MAX,
    TEXT_MAX,
)
from control_plane.config.log_policies import NAME_CHARACTERS_MAX
from control_plane.scheduling.sizes import AGENTS_MAX
from control_plane.searchers.method import ExitReason
from detcloud.shared.line_patterns.syntax import PATTERN_CHARACTERS_MAX

USE = Use(*[1 << 53] * 4)
"""The largest sums of the use of slots."""
NODE_LAST = 28
"""The rank of the last node of the largest gang."""


def text(length: int) -> str:
    """Return text that compresses badly."""
    return Random(length).randbytes(length // 2 + 1).hex()[:length]


REASON = text(TEXT_MAX)
"""The longest text of a report."""
RUN_REPORTS: Mapping[type, Callable[[], object]] = {
    to_trial.ValidationReported: lambda: to_trial.ValidationReported(
        1, 5, None, missing_metric_reason=REASON, nodes=AGENTS_MAX
    ),
    to_trial.ProgressReported: lambda: to_trial.ProgressReported(1, 1 / 3),
    to_trial.LengthReached: lambda: to_trial.LengthReached(1, 100, None, REASON),
    to_trial.EarlyExitReported: lambda: to_trial.EarlyExitReported(1, ExitReason.INVALID_HP),
    AlertReported: lambda: AlertReported(1, text(ALERT_CHARACTERS_MAX), REASON, "error"),
    UseReported: lambda: UseReported(1, USE, 100),
    LowUseReported: lambda: LowUseReported(1, True, 99.99, 1 << 53, 100),
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
    GangMeetingDelayed: lambda: GangMeetingDelayed(
        1, NODE_LAST, tuple(range(FAULTS_MAX)), has_met=True, waited_ms=1 << 53
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
