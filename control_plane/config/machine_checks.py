"""The sections `gang_check` and `log_exclusion`: the exclusion of bad machines."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from control_plane.actors.messages.pool import GangCheckRules, LogExclusionRules
from control_plane.config.durations import PositiveDuration
from control_plane.config.section import Section
from control_plane.field_types import Text

POLICIES_MAX = 64


class GangCheck(Section):
    """The check of the machines of a trial on several machines, before the trial starts."""

    enabled: bool = True
    """Whether the machines are checked."""
    min_bandwidth: Annotated[float, Field(gt=0)] | None = None
    """The smallest bandwidth of the all-reduce between the machines, in MB/s. If absent, a quarter
    of the median of the pool's latest passed checks.
    """
    timeout: PositiveDuration = 60_000
    """The longest duration of an all-reduce, which fails otherwise. The search for bad machines has
    up to three all-reduces more than halvings of the gang.
    """
    exclusion: PositiveDuration = 3_600_000
    """How long a bad machine takes no new work."""

    def rules(self) -> GangCheckRules:
        """Return the settings for the pool actor."""
        return GangCheckRules(self.enabled, self.min_bandwidth, self.timeout, self.exclusion)


class LogExclusion(Section):
    """The exclusion of machines from the pool by log policies with `exclude_node`."""

    duration: PositiveDuration
    """How long a machine takes no new work after a line has matched."""
    policies: Annotated[tuple[Text, ...], Field(strict=False, max_length=POLICIES_MAX)] = ()
    """The names of the policies that exclude machines from the pool. If absent, all policies with
    `exclude_node`, also policies that users define.
    """

    def rules(self) -> LogExclusionRules:
        """Return the settings for the pool actor."""
        return LogExclusionRules(self.duration, self.policies)
