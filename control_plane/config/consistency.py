"""Rules that concern several sections of a configuration, or depend on the era and searcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from control_plane.config.environment import PROXY_PORTS_MAX
from control_plane.config.eras import Era, Scope, search_rules
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.hyperparameters import (
    Categorical,
    Const,
    Int,
    grid_point_count,
)
from control_plane.config.integrations import choice_findings, commit_findings
from control_plane.config.log_policies import find_content_problems
from control_plane.config.retention import retention_findings
from control_plane.config.searcher import NO_SEARCHER
from control_plane.field_types import BATCH_SIZE, COUNT_MAX, MAX_LENGTH_HINT, is_count
from control_plane.findings import Finding, path_text, shown_count
from control_plane.searchers.registry import searcher_spec
from detcloud.shared.launcher_names import trial_class_of

WINDOW_RESTARTS_MAX: Final = 100
Rule = Callable[[ExperimentConfig, Scope], Iterator[Finding]]


def inconsistencies(
    config: ExperimentConfig, scope: Scope, refused: frozenset[str]
) -> Iterator[Finding]:
    """Yield the findings of all rules between sections. Valid configurations have no findings.

    Args:
        scope: the era's rules and the name of the searcher.
        refused: the names of sections with errors. Rules that read these sections are skipped,
            because `config` has defaults in their place.
    """
    for needed, rule in _RULES:
        if not needed & refused:
            yield from rule(config, scope)


def _check_entrypoint(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    native = (config.internal or {}).get("native")
    if config.entrypoint is None and not native:
        hint = "like model_def:MyTrial"
        yield Finding(("entrypoint",), "is required", hint)


def _check_searcher(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    if config.searcher == NO_SEARCHER:
        length = "max_steps: 10" if scope.rules.era is Era.STEP else "max_length: {batches: 1000}"
        hint = f"like {{name: single, metric: loss, {length}}}"
        yield Finding(("searcher",), "is required", hint)


def _check_trial_length(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    """Yield a finding if the entrypoint names a trial class and the searcher has no length.

    A launcher with the option `--trial` names a trial class, too. Scripts may end their training
    themselves. Custom searches and searchers with a time metric need no length.
    """
    names_class = config.entrypoint is not None and trial_class_of(config.entrypoint)
    if names_class and config.searcher.is_open_ended:
        message = f"is required, since {names_class} trains as far as the search says"
        yield Finding(("searcher", "max_length"), message, MAX_LENGTH_HINT)


def _check_records_per_epoch(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    users = [path_text(loc) for loc, length in config.lengths().items() if length.unit == "epochs"]
    if not users and config.unit == "epochs":
        users = ["searcher.unit"]
    if users and not config.scale.records_per_epoch and config.entrypoint is None:
        message = f"is required, since {users[0]} counts epochs"
        hint = "how many records one epoch has; only trials with an entrypoint count their own"
        yield Finding(("records_per_epoch",), message, hint)


def _check_batch_size(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    lengths = config.lengths().items()
    converted = ("records", "epochs") if config.scale.records_per_epoch else ("records",)
    users = [path_text(loc) for loc, length in lengths if length.unit in converted]
    if not users and not scope.rules.global_batch_size_required:
        return
    loc = ("hyperparameters", BATCH_SIZE)
    if BATCH_SIZE not in config.hyperparameters:
        if scope.rules.global_batch_size_required:
            yield Finding(loc, "is required", "the records in one batch over all slots")
        return
    least = _least_integer(config.hyperparameters[BATCH_SIZE])
    slots = config.job.slots_per_trial
    if least is None:
        yield Finding(loc, "must be an integer of at least 1, or choose among such")
    elif scope.rules.global_batch_size_required and least < slots and not _is_native(config):
        message = f"must be at least slots_per_trial ({slots}), but can be {least}"
        yield Finding(loc, message, "each slot needs at least one record of a batch", least)


def _check_proxy_ports(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    ports = {entry.proxy_port for entry in config.environment.proxy_ports}
    if len(ports) > PROXY_PORTS_MAX:
        message = f"have {len(ports)} ports, at most {PROXY_PORTS_MAX} are allowed"
        hint = "`detcloud tunnel ID PORT...` also opens ports that the configuration does not name"
        yield Finding(("environment", "proxy_ports"), message, hint)


def _check_restart_window(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    """Yield a finding for a large `max_restarts` with a `restart_window`.

    The trial stores the time of each failure within the window.
    """
    if config.restart_window is not None and config.max_restarts > WINDOW_RESTARTS_MAX:
        message = f"must be at most {WINDOW_RESTARTS_MAX} with a restart_window"
        hint = "leave restart_window out, or lower max_restarts"
        yield Finding(("max_restarts",), message, hint, config.max_restarts)


def _check_debugger(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    if not config.debugger.enabled or config.searcher == NO_SEARCHER or config.trials == 1:
        return
    message = f"is for a single trial, but the {scope.searcher} searcher may create several"
    hint = "use the searcher single, with a value in place of each range of hyperparameters"
    yield Finding(("debugger", "enabled"), message, hint)


def _check_grid(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    if scope.space_use != "grid":
        return
    points = grid_point_count(config.hyperparameters, scope.rules.grid_integers_extra)
    loc = ("hyperparameters",)
    if not config.hyperparameters:
        message = f"is required by the {scope.searcher} searcher, which needs at least one"
        yield Finding(loc, message)
    elif points > scope.rules.grid_points_max:
        most = scope.rules.grid_points_max
        message = f"make a grid of {shown_count(points)} points, at most {most} are allowed"
        yield Finding(loc, message, "lower a count or use the random searcher")


def _check_searcher_options(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    if config.searcher == NO_SEARCHER:
        return
    spec = searcher_spec(config.searcher.name)
    for finding in spec.find_problems(config.searcher, search_rules(scope.rules.era)):
        yield replace(finding, loc=("searcher", *finding.loc))


def _check_countable(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    worth = {
        "steps": config.scale.batches_per_step,
        "epochs": config.scale.records_per_epoch or 1,
    }
    for loc, length in config.lengths().items():
        if length.count * worth.get(length.unit, 1) > COUNT_MAX:
            yield Finding(loc, f"is more than {COUNT_MAX} batches or records", "", length.count)


def _check_integrations(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    yield from choice_findings(config.integrations)
    yield from commit_findings(config.integrations)


def _check_retention(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    yield from retention_findings(config.retention_policy)


def _check_log_policies(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    yield from find_content_problems(config.log_policies, ("log_policies",))


def _check_device_needs(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    """Yield a finding for needs for devices of trials without slots."""
    resources = config.resources
    for name in ("slot_type", "slot_memory"):
        if getattr(resources, name) and not resources.slots_per_trial:
            text = "needs a slot, and the trials have none"
            yield Finding(("resources", name), text, "remove it, or use at least 1 slot")


_RULES: Final[tuple[tuple[frozenset[str], Rule], ...]] = (
    (frozenset({"entrypoint", "internal"}), _check_entrypoint),
    (frozenset({"searcher"}), _check_searcher),
    (frozenset({"searcher", "entrypoint"}), _check_trial_length),
    (frozenset({"records_per_epoch"}), _check_records_per_epoch),
    (frozenset({"records_per_epoch", "batches_per_step"}), _check_countable),
    (frozenset({"hyperparameters", "resources"}), _check_batch_size),
    (frozenset({"hyperparameters"}), _check_grid),
    (frozenset({"searcher"}), _check_searcher_options),
    (frozenset({"environment"}), _check_proxy_ports),
    (frozenset({"searcher", "hyperparameters", "debugger"}), _check_debugger),
    (frozenset({"max_restarts", "restart_window"}), _check_restart_window),
    (frozenset({"integrations"}), _check_integrations),
    (frozenset({"log_policies"}), _check_log_policies),
    (frozenset({"retention_policy"}), _check_retention),
    (frozenset({"resources"}), _check_device_needs),
)


def _least_integer(parameter: object) -> int | None:
    """Return the smallest value of a hyperparameter that can only be an integer of at least 1.

    Return None if other values are possible. For a range of integers, return minval. Return None
    for other ranges and for groups.
    """
    match parameter:
        case Const(val=value):
            values: tuple[object, ...] = (value,)
        case Int(minval=minval):
            values = (minval,)
        case Categorical(vals=vals):
            values = vals
        case _:
            return None
    counts = [value for value in values if isinstance(value, int) and is_count(value, 1)]
    return min(counts) if counts and len(counts) == len(values) else None


def _is_native(config: ExperimentConfig) -> bool:
    return config.resources.native_parallel
