"""The limits of experiments, commands, notebooks and shells: `max_duration` and `idle_timeout`.

Experiments also have `max_trial_duration`, the limit of each trial. A run is a command, notebook or
shell. The limits are at the top of a configuration. Experiments store their limits in their
configuration, and runs in the settings of their trial. The cluster's configuration has defaults and
the longest allowed values: `run_limits` for runs, and `experiment_limits` for experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self

from pydantic import ValidationError, model_validator

from control_plane.actors.records import JobKind
from control_plane.config.durations import PositiveDuration, duration_text
from control_plane.config.eras import Tree
from control_plane.config.section import Section, findings_of, refuse_at
from control_plane.findings import Finding

LIMIT_FIELDS: Final = ("idle_timeout", "max_duration")
TRIAL_LIMIT: Final = "max_trial_duration"


class RunLimitFields(Section):
    """The limits in a run's configuration."""

    idle_timeout: PositiveDuration | None = None
    """The time after which an idle run ends. If absent, an idle run continues."""
    max_duration: PositiveDuration | None = None
    """The time after which a run ends, from the assignment of slots. If absent, a run has no limit.
    """


class RunLimits(NamedTuple):
    """The limits of a run or an experiment, in milliseconds. None: no limit."""

    idle_timeout_ms: int | None = None
    max_duration_ms: int | None = None
    max_trial_duration_ms: int | None = None
    """The limit of each trial. Always None for commands, notebooks and shells."""


NO_LIMITS: Final = RunLimits()


class LimitRules(Section):
    """The fields that the rules for runs and for experiments share."""

    limit_names: ClassVar[tuple[str, ...]] = LIMIT_FIELDS
    """The limits that the rules are for."""

    default_idle_timeout: PositiveDuration | None = None
    longest_idle_timeout: PositiveDuration | None = None
    default_max_duration: PositiveDuration | None = None
    longest_max_duration: PositiveDuration | None = None

    @model_validator(mode="after")
    def _check_defaults(self) -> Self:
        for name in self.limit_names:
            default, longest = self._default(name), self._longest(name)
            if default is not None and longest is not None and default > longest:
                text = f"must be at most longest_{name}, {duration_text(longest)}"
                refuse_at((f"default_{name}",), text, value=duration_text(default))
        return self

    def config_layer(self, kind: JobKind) -> dict[str, Any]:
        """Return the defaults as a layer of the configuration of a job of this kind."""
        layer = {}
        for name in self._limited_fields(kind):
            default = self._default(name)
            value = self._longest(name) if default is None else default
            if value is not None:
                layer[name] = duration_text(value)
        return layer

    def find_problem(self, kind: JobKind, limits: RunLimits) -> Finding | None:
        """Return a finding about a limit that is missing, or longer than the cluster allows.

        Return None without a problem.
        """
        values = dict(zip((*LIMIT_FIELDS, TRIAL_LIMIT), limits, strict=True))
        for name in self.limit_names:
            longest, value = self._longest(name), values[name]
            if longest is None or (value is None and name not in self._limited_fields(kind)):
                continue
            if value is None or value > longest:
                given = "no limit" if value is None else duration_text(value)
                text = f"is {given}, longer than this cluster allows"
                return Finding((name,), text, f"set at most {duration_text(longest)}")
        return None

    def _limited_fields(self, kind: JobKind) -> tuple[str, ...]:
        """Return the limits for which the cluster has defaults, for jobs of this kind."""
        return self.limit_names if kind is not JobKind.COMMAND else ("max_duration",)

    def _default(self, name: str) -> int | None:
        value: int | None = getattr(self, f"default_{name}")
        return value

    def _longest(self, name: str) -> int | None:
        value: int | None = getattr(self, f"longest_{name}")
        return value


class RunLimitRules(LimitRules):
    """The cluster's rules for the limits of commands, notebooks and shells."""

    default_idle_timeout: PositiveDuration | None = None
    """The default `idle_timeout` of notebooks and shells. Commands have no default, because a
    command that computes may be idle.
    """
    longest_idle_timeout: PositiveDuration | None = None
    """The longest `idle_timeout` that a configuration may set. Notebooks and shells must then have
    one; the default is this value if `default_idle_timeout` is absent.
    """
    default_max_duration: PositiveDuration | None = None
    """The default `max_duration` of commands, notebooks and shells."""
    longest_max_duration: PositiveDuration | None = None
    """The longest `max_duration` that a configuration may set. Every command, notebook and shell
    must then have one; the default is this value if `default_max_duration` is absent.
    """


class ExperimentLimitRules(LimitRules):
    """The cluster's rules for the limits of experiments."""

    limit_names: ClassVar[tuple[str, ...]] = (*LIMIT_FIELDS, TRIAL_LIMIT)

    default_idle_timeout: PositiveDuration | None = None
    """The default `idle_timeout` of experiments."""
    longest_idle_timeout: PositiveDuration | None = None
    """The longest `idle_timeout` that an experiment may set. Every experiment must then have one;
    the default is this value if `default_idle_timeout` is absent.
    """
    default_max_duration: PositiveDuration | None = None
    """The default `max_duration` of experiments."""
    longest_max_duration: PositiveDuration | None = None
    """The longest `max_duration` that an experiment may set. Every experiment must then have one;
    the default is this value if `default_max_duration` is absent.
    """
    default_max_trial_duration: PositiveDuration | None = None
    """The default `max_trial_duration` of experiments."""
    longest_max_trial_duration: PositiveDuration | None = None
    """The longest `max_trial_duration` that an experiment may set. Every experiment must then have
    one; the default is this value if `default_max_trial_duration` is absent.
    """


def take_limits(layers: Sequence[Tree]) -> tuple[list[Tree], RunLimits, list[Finding]]:
    """Take the limits out of the layers of a run's configuration.

    Return the layers without limits, the limits, and a finding for each invalid limit. A null in an
    upper layer means no limit. Invalid limits count as missing.

    Args:
        layers: the layers, the user's layer first.
    """
    merged = {
        name: value
        for layer in reversed(layers)
        for name, value in layer.items()
        if name in LIMIT_FIELDS
    }
    rest: list[Tree] = [
        {name: value for name, value in layer.items() if name not in LIMIT_FIELDS}
        for layer in layers
    ]
    try:
        fields = RunLimitFields.model_validate(merged)
    except ValidationError as error:
        return rest, NO_LIMITS, findings_of(error)
    return rest, RunLimits(fields.idle_timeout, fields.max_duration), []


def limit_values(limits: RunLimits) -> dict[str, str]:
    """Return the limits that are set, in the form that users write."""
    values = zip(LIMIT_FIELDS, limits, strict=False)
    return {name: duration_text(value) for name, value in values if value is not None}
