"""`describe` of commands, notebooks and shells, at a real API."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, Cluster, build_cluster
from tests.unit.cli.conftest import Detcloud

KINDS = ("command", "notebook", "shell")
CONFIG = "description: my run\nresources: {slots: 0}\n"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A served cluster, to which the commands of the test connect."""
    built = build_cluster(tmp_path / "objects")
    with serve_app(built.app) as url:
        monkeypatch.setenv("DETCLOUD_URL", url)
        monkeypatch.setenv("DETCLOUD_TOKEN", TOKENS[Role.USER])
        yield built


def add_run(cluster: Cluster, kind: str) -> None:
    program = "entrypoint: echo hello\n" if kind == "command" else ""
    answer = cluster.create(program + CONFIG, kind=kind)
    assert answer.status == 201, answer.body


@pytest.mark.parametrize("kind", KINDS)
def test_description_shows_program_slots_and_job(
    kind: str, cluster: Cluster, detcloud: Detcloud
) -> None:
    add_run(cluster, kind)
    done = detcloud(kind, "describe", "1")
    assert (done.code, done.err) == (0, "")
    assert "my run" in done.out
    # A command keeps no folder.
    assert ("Last saved" in done.out) == (kind != "command")


@pytest.mark.parametrize("kind", KINDS)
def test_description_as_json_is_an_object_or_a_list(
    kind: str, cluster: Cluster, detcloud: Detcloud
) -> None:
    add_run(cluster, kind)
    add_run(cluster, kind)
    assert json.loads(detcloud(kind, "describe", "2", "--json").out)["id"] == 2
    several = json.loads(detcloud(kind, "describe", "2,1", "--json").out)
    assert [one["id"] for one in several] == [2, 1]
    assert all("exit_code" in one for one in several)


@pytest.mark.parametrize("kind", KINDS)
def test_description_as_csv_has_a_line_for_each_run(
    kind: str, cluster: Cluster, detcloud: Detcloud
) -> None:
    add_run(cluster, kind)
    add_run(cluster, kind)
    assert len(detcloud(kind, "describe", "1", "2", "--csv").out.splitlines()) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_run_of_another_kind_is_refused(kind: str, cluster: Cluster, detcloud: Detcloud) -> None:
    other = KINDS[KINDS.index(kind) - 1]
    add_run(cluster, other)
    done = detcloud(kind, "describe", "1")
    assert (done.code, done.out) == (1, "")
    assert f"1 is a {other}, not a {kind}" in done.err
