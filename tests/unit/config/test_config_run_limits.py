"""The limits of commands, notebooks and shells, and the cluster's rules for them."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.actors.records import JobKind
from control_plane.config.check import check_config, find_run_limits
from control_plane.config.pools import ClusterConfig, check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.config.run_limits import NO_LIMITS, RunLimitRules, RunLimits, limit_values
from control_plane.config.trial_settings import trial_settings

HOUR_MS = 3_600_000
COMMAND, NOTEBOOK, SHELL = JobKind.COMMAND, JobKind.NOTEBOOK, JobKind.SHELL


def rules(**limits: str) -> RunLimitRules:
    return ClusterConfig.model_validate({"run_limits": limits}).run_limits


def test_limits_are_taken_from_the_uppermost_layer() -> None:
    template = "max_duration: 1d\nidle_timeout: 2h\n"
    cluster = {"max_duration": "3d"}
    limits = find_run_limits("max_duration: 90m", template=template, cluster=cluster)
    assert limits == RunLimits(2 * HOUR_MS, HOUR_MS * 3 // 2)
    # A null means no limit.
    assert find_run_limits("max_duration: null", cluster=cluster) == NO_LIMITS
    assert find_run_limits("{}", overrides=["idle_timeout=30"]) == RunLimits(30_000, None)


@pytest.mark.parametrize("kind", [COMMAND, NOTEBOOK, SHELL])
def test_limits_are_no_part_of_the_experiment(kind: JobKind) -> None:
    text = "max_duration: 2h\nidle_timeout: 1h\n"
    entrypoint = "entrypoint: [sleep, '9']\n" if kind is COMMAND else ""
    config = check_config(entrypoint + text, kind=kind)
    limits = find_run_limits(text)
    settings = trial_settings(config, "pool", 0, kind, limits)
    assert settings.max_duration_ms == 2 * HOUR_MS
    # JupyterLab ends idle notebooks, by options of its program.
    assert settings.idle_timeout_ms == (None if kind is NOTEBOOK else HOUR_MS)
    words = config.entrypoint
    assert isinstance(words, tuple)
    assert ("--idle-timeout" in words) == (kind is NOTEBOOK)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("max_duration: soon", "max_duration"),
        ("max_duration: 0", "max_duration"),
        ("idle_timeout: [1]", "idle_timeout"),
    ],
)
def test_invalid_limit_is_refused_with_its_place(text: str, path: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        check_config(f"{text}\n", kind=SHELL)
    assert [(problem.path, problem.line) for problem in refused.value.problems] == [(path, 1)]


def test_limits_of_an_experiment_are_fields_of_its_configuration() -> None:
    text = "entrypoint: python3 train.py\nmax_duration: 8h\nidle_timeout: 30m\n"
    config = check_config(text + "searcher: {name: single, max_length: 1, metric: loss}\n")
    settings = trial_settings(config, "pool", 0)
    assert settings.experiment_duration_ms == 8 * HOUR_MS
    assert settings.idle_timeout_ms == HOUR_MS // 2
    # The experiment ends at max_duration, so that the run itself has no such limit.
    assert settings.max_duration_ms is None
    assert (settings.trial_duration_ms, settings.restart_window_ms) == (None, None)


def test_limits_of_each_trial_are_settings_of_the_trial() -> None:
    text = "entrypoint: python3 train.py\nmax_trial_duration: 3h\nrestart_window: 1d\n"
    config = check_config(text + "searcher: {name: single, max_length: 1, metric: loss}\n")
    settings = trial_settings(config, "pool", 0)
    assert settings.trial_duration_ms == 3 * HOUR_MS
    assert settings.restart_window_ms == 24 * HOUR_MS
    # Commands have no trials with a limit.
    assert trial_settings(config, "pool", 0, COMMAND).trial_duration_ms is None


@pytest.mark.parametrize("restarts", [100, 101])
def test_restart_window_needs_few_restarts(restarts: int) -> None:
    text = f"max_restarts: {restarts}\nrestart_window: 1d\nentrypoint: a\n"
    text += "searcher: {name: single, max_length: 1, metric: loss}\n"
    if restarts == 100:
        assert check_config(text).max_restarts == 100
        return
    with pytest.raises(ConfigInvalid) as refused:
        check_config(text)
    [problem] = refused.value.problems
    assert (problem.path, problem.line) == ("max_restarts", 1)
    assert check_config(text.replace("restart_window: 1d\n", "")).max_restarts == 101


@pytest.mark.parametrize(
    ("limits", "kind", "layer"),
    [
        ({}, SHELL, {}),
        ({"default_idle_timeout": "2h"}, SHELL, {"idle_timeout": "2h"}),
        # A command that computes may be idle.
        ({"default_idle_timeout": "2h", "longest_idle_timeout": "3h"}, COMMAND, {}),
        ({"longest_max_duration": "2d"}, COMMAND, {"max_duration": "2d"}),
        (
            {"default_max_duration": "8h", "longest_max_duration": "2d"},
            NOTEBOOK,
            {"max_duration": "8h"},
        ),
    ],
)
def test_cluster_has_defaults(limits: dict[str, str], kind: JobKind, layer: dict[str, str]) -> None:
    assert rules(**limits).config_layer(kind) == layer


def test_cluster_has_separate_limits_for_experiments() -> None:
    fields = {
        "run_limits": {"default_max_duration": "8h"},
        "experiment_limits": {"longest_max_duration": "5d", "default_idle_timeout": "2h"},
    }
    cluster = ClusterConfig.model_validate(fields)
    of_experiments = cluster.limit_rules(JobKind.EXPERIMENT)
    layer = of_experiments.config_layer(JobKind.EXPERIMENT)
    assert layer == {"max_duration": "5d", "idle_timeout": "2h"}
    assert cluster.limit_rules(SHELL).config_layer(SHELL) == {"max_duration": "8h"}
    problem = of_experiments.find_problem(JobKind.EXPERIMENT, RunLimits(None, None))
    assert problem is not None
    assert problem.loc == ("max_duration",)
    fields = {"experiment_limits": {"longest_max_trial_duration": "2h"}}
    of_trials = ClusterConfig.model_validate(fields).experiment_limits
    assert of_trials.config_layer(JobKind.EXPERIMENT) == {"max_trial_duration": "2h"}
    assert of_trials.find_problem(JobKind.EXPERIMENT, RunLimits(1, 1, 2 * HOUR_MS)) is None
    problem = of_trials.find_problem(JobKind.EXPERIMENT, RunLimits(1, 1, 2 * HOUR_MS + 1))
    assert problem is not None
    assert problem.loc == ("max_trial_duration",)


def test_default_of_the_cluster_ends_idle_notebooks() -> None:
    layer = rules(default_idle_timeout="2h").config_layer(NOTEBOOK)
    words = check_config("{}", kind=NOTEBOOK, cluster=layer).entrypoint
    assert words is not None
    assert list(words[3:5]) == ["--idle-timeout", "7200"]
    own = check_config("idle_timeout: 60", kind=NOTEBOOK, cluster=layer).entrypoint
    assert own is not None
    assert list(own[3:5]) == ["--idle-timeout", "60"]


@pytest.mark.parametrize(
    ("kind", "limits", "path"),
    [
        (SHELL, RunLimits(HOUR_MS, HOUR_MS), None),
        (SHELL, RunLimits(HOUR_MS + 1, HOUR_MS), "idle_timeout"),
        (SHELL, RunLimits(None, HOUR_MS), "idle_timeout"),
        (COMMAND, RunLimits(None, HOUR_MS), None),
        (COMMAND, RunLimits(HOUR_MS + 1, HOUR_MS), "idle_timeout"),
        (COMMAND, RunLimits(None, None), "max_duration"),
        (NOTEBOOK, RunLimits(1, HOUR_MS + 1), "max_duration"),
    ],
)
def test_longest_limits_are_enforced(kind: JobKind, limits: RunLimits, path: str | None) -> None:
    longest = rules(longest_idle_timeout="1h", longest_max_duration="1h")
    problem = longest.find_problem(kind, limits)
    assert (None if problem is None else problem.loc[0]) == path
    assert rules().find_problem(kind, limits) is None


def test_default_above_the_longest_value_is_refused() -> None:
    text = "run_limits: {default_max_duration: 2d, longest_max_duration: 1d}\n"
    with pytest.raises(ConfigInvalid, match="at most longest_max_duration, 1d") as refused:
        check_cluster(text)
    [problem] = refused.value.problems
    assert problem.path == "run_limits.default_max_duration"


def test_limits_are_shown_as_users_write_them() -> None:
    values: dict[str, Any] = limit_values(RunLimits(90_000, None))
    assert values == {"idle_timeout": "1m30s"}
