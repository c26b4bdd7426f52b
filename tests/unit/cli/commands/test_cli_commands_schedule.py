"""`detcloud schedule`, and `detcloud create` with a schedule, against the real application."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import NOW_MS, TOKENS, Cluster, build_cluster
from tests.unit.cli.conftest import Detcloud

CONFIG = """\
name: nightly
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 1}}
schedule: {cron: "0 3 * * *", time_zone: Europe/Berlin}
"""
NEXT_MS = NOW_MS + 18 * 3_600_000


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Serve the API, and make the user's cluster of the API."""
    built = build_cluster(tmp_path / "cluster")
    with serve_app(built.app) as url:
        monkeypatch.setenv("DETCLOUD_URL", url)
        monkeypatch.setenv("DETCLOUD_TOKEN", TOKENS[Role.USER])
        yield built


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Return the paths of a configuration with a schedule, and of the code."""
    config, code = tmp_path / "nightly.yaml", tmp_path / "train.py"
    config.write_text(CONFIG)
    code.write_text("print(1)\n")
    return str(config), str(code)


def test_schedule_is_created_run_changed_and_deleted(
    cluster: Cluster, detcloud: Detcloud, files: tuple[str, str]
) -> None:
    created = detcloud("create", *files)
    assert (created.code, created.out) == (0, "Created schedule 1\n")
    assert detcloud("schedule", "run-now", "1").out == "Created experiment 1\n"
    [listed] = json.loads(detcloud("schedule", "list", "--json").out)
    assert (listed["next_ms"], listed["last_experiment_id"]) == (NEXT_MS, 1)
    shown = detcloud("schedule", "describe", "1").out
    assert "submitted" in shown
    assert "Europe/Berlin" in shown
    assert detcloud("schedule", "pause", "1").out == "schedule 1 was paused\n"
    paused = json.loads(detcloud("schedule", "activate", "1", "--json").out)
    assert paused["paused"] is False
    assert detcloud("schedule", "rm", "1").out == "schedule 1 was deleted\n"
    assert detcloud("schedule", "describe", "1").code == 3
    described = json.loads(detcloud("experiment", "describe", "1", "--json").out)
    assert described["schedule_id"] == 1
    assert re.search(r"^Schedule +1$", detcloud("experiment", "describe", "1").out, re.MULTILINE)


def test_schedules_of_overrides_and_templates_are_created(
    cluster: Cluster, detcloud: Detcloud, files: tuple[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "plain.yaml"
    config.write_text(CONFIG.partition("schedule:")[0])
    override = ("--config", "schedule.cron='@daily'")
    assert detcloud("create", str(config), files[1], *override).out == "Created schedule 1\n"
    template = tmp_path / "template.yaml"
    template.write_text('schedule: {cron: "@hourly"}\n')
    detcloud("template", "create", "hourly", str(template))
    created = detcloud("create", str(config), files[1], "--template", "hourly", "--json")
    assert json.loads(created.out)["cron"] == "@hourly"


def test_refused_schedule_names_the_field(
    cluster: Cluster, detcloud: Detcloud, files: tuple[str, str]
) -> None:
    refused = detcloud("create", *files, "--config", "schedule.cron=0 25 * * *")
    assert refused.code != 0
    assert "schedule.cron: is not a cron expression: Bad hour" in refused.err


@pytest.mark.parametrize("option", ["--follow", "-f", "--debug"])
def test_options_of_experiments_are_refused(
    cluster: Cluster, detcloud: Detcloud, files: tuple[str, str], option: str
) -> None:
    refused = detcloud("create", *files, option)
    assert refused.code != 0
    assert "is not possible for a configuration with a schedule" in refused.err
    assert detcloud("schedule", "list", "--json").out.strip() == "[]"


def test_test_mode_runs_once(cluster: Cluster, detcloud: Detcloud, files: tuple[str, str]) -> None:
    created = detcloud("create", *files, "--test-mode", "--paused")
    assert created.out.startswith("Created experiment 1")
