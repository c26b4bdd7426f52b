"""The section `snapshots` of notebooks and shells: defaults, layers and errors."""

import pytest

from control_plane.actors.records import JobKind, SnapshotSettings
from control_plane.config.check import check_config, find_snapshots
from control_plane.config.problems import ConfigInvalid
from control_plane.config.snapshots import snapshot_values

GIB = 1024**3


def problems(text: str, kind: JobKind = JobKind.SHELL) -> list[tuple[str, str]]:
    with pytest.raises(ConfigInvalid) as caught:
        check_config(text, kind=kind)
    return [(problem.path, problem.message) for problem in caught.value.problems]


@pytest.mark.parametrize("kind", [JobKind.NOTEBOOK, JobKind.SHELL])
@pytest.mark.parametrize("text", ["", "snapshots: null", "snapshots: {period: null}"])
def test_notebooks_and_shells_are_kept_by_default(kind: JobKind, text: str) -> None:
    check_config(text, kind=kind)
    assert find_snapshots(text, kind) == SnapshotSettings(kind, 300_000, GIB)


def test_fields_of_all_layers_are_merged() -> None:
    settings = find_snapshots(
        "snapshots: {period: 1m}",
        JobKind.SHELL,
        template="snapshots: {max_size: 20 mb, period: 2m}",
        overrides=["snapshots.max_size=30mb"],
    )
    assert settings == SnapshotSettings(JobKind.SHELL, 60_000, 30 * 1024**2)


def test_disabled_snapshots_have_no_settings() -> None:
    assert find_snapshots("snapshots: {enabled: false}", JobKind.NOTEBOOK) is None


def test_commands_and_experiments_have_no_snapshots() -> None:
    text = "entrypoint: [ls]\nsnapshots: {period: 1m}\n"
    assert problems(text, JobKind.COMMAND) == [("snapshots", "is for notebooks and shells")]
    assert find_snapshots("entrypoint: [ls]", JobKind.COMMAND) is None
    assert ("snapshots", "is not a known field") in problems(text, JobKind.EXPERIMENT)


@pytest.mark.parametrize(
    ("section", "path", "message"),
    [
        ("5m", "snapshots", "must be a map of fields"),
        ("{period: 5s}", "snapshots.period", "must be at least 10s"),
        ("{period: soon}", "snapshots.period", "must be a duration"),
        ("{max_size: lots}", "snapshots.max_size", "must be a number of bytes or a size"),
        ("{enabled: maybe}", "snapshots.enabled", "must be"),
        ("{every: 5m}", "snapshots.every", "is not a known field"),
    ],
)
def test_wrong_fields_are_reported(section: str, path: str, message: str) -> None:
    [(found, text)] = problems(f"snapshots: {section}")
    assert found == path
    assert text.startswith(message)


def test_settings_are_shown_as_written() -> None:
    settings = SnapshotSettings(JobKind.SHELL, 90_000, 1000)
    shown = {"snapshots": {"enabled": True, "period": "1m30s", "max_size": 1000}}
    assert snapshot_values(JobKind.SHELL, settings) == shown
    assert snapshot_values(JobKind.SHELL, None) == {"snapshots": {"enabled": False}}
    assert snapshot_values(JobKind.COMMAND, None) == {}
