"""`detcloud model` and models of the SDK, on the API of a real cluster."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from detcloud.client import Client
from detcloud.compatibility import client as determined_client
from detcloud.compatibility.handles import OrderBy
from detcloud.compatibility.models import ModelSortBy
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, Cluster, build_cluster
from tests.unit.api.exchange import call
from tests.unit.cli.conftest import Detcloud
from tests.unit.queries.test_queries_trials import checkpoint

UUID = "00000011-0000-4000-8000-000000000000"


class ApplicationTransport:
    """Client transport that calls the API in this process; raises ApiError from status 400 on."""

    cluster: Cluster

    def __init__(self, url: str, token: str) -> None:
        self._token = token

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        sent = [(name.lower(), value) for name, value in (headers or {}).items()]
        app = ApplicationTransport.cluster.app
        answer = call(app, method, path, token=self._token, headers=sent, content=body)
        if answer.status >= 400:
            raise ApiError(answer.status, **answer.json["error"])
        return answer.json

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Build a cluster with one checkpoint, and connect Client to the cluster's API."""
    cluster = ApplicationTransport.cluster = build_cluster(tmp_path / "cluster")
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    checkpoint(cluster, agent, 1, UUID, 2)
    monkeypatch.setattr("detcloud.client.connection.Transport", ApplicationTransport)
    monkeypatch.setenv("DETCLOUD_URL", "http://cluster")
    monkeypatch.setenv("DETCLOUD_TOKEN", TOKENS[Role.USER])
    return cluster


def test_a_model_is_created_shown_and_deleted(detcloud: Detcloud) -> None:
    made = detcloud("model", "create", "digits", "-w", "Vision", "--description", "ten", "--json")
    assert json.loads(made.out)["workspace"] == "Vision"
    assert detcloud("m", "create", "digits").err == (
        "error: model digits already exists (owner user-1)\n"
    )
    assert " digits | Vision" in detcloud("model", "list").out
    assert detcloud("m", "set", "digits", "--label", "a", "--metadata", '{"f1": 0.9}').out == (
        "model digits was updated\n"
    )
    described = detcloud("m", "describe", "digits").out
    assert 'Metadata     {"f1": 0.9}\n' in described
    assert 'Labels       ["a"]\n' in described
    assert detcloud("m", "set", "digits", "--label", "").code == 0
    assert json.loads(detcloud("m", "describe", "digits", "--json").out)["labels"] == []
    assert detcloud("m", "set", "digits").err.startswith("error: nothing to change: set --desc")
    assert detcloud("m", "create", "x", "--metadata", "[]").code == 2
    assert (
        "confirm with --yes, since stdin is not a terminal" in detcloud("m", "delete", "digits").err
    )
    assert detcloud("m", "delete", "digits", "-y").out == "model digits was deleted\n"
    assert detcloud("m", "describe", "digits").err == (
        "error: there is no model digits\nhint: `detcloud model list` shows what exists\n"
    )


def test_models_are_archived_moved_and_sorted(detcloud: Detcloud, cluster: Cluster) -> None:
    for name, description in (("a", "z"), ("b", "y"), ("c", "y")):
        detcloud("m", "create", name, "--description", description)
        cluster.clock.ms += 1_000
    assert detcloud("m", "move", "a", "-w", "Vision").out == "model a is in workspace Vision\n"

    def listed_names(*options: str) -> list[str]:
        return [item["name"] for item in json.loads(detcloud("m", "ls", "--json", *options).out)]

    # Model a was changed last.
    assert listed_names() == ["b", "c", "a"]
    assert listed_names("--order-by", "desc") == ["a", "c", "b"]
    assert listed_names("--sort-by", "description") == ["b", "c", "a"]
    assert listed_names("--sort-by", "creation_time", "--order-by", "desc") == ["c", "b", "a"]
    assert listed_names("-w", "Vision,None") == ["a"]
    assert detcloud("m", "archive", "a").out == "model a is archived\n"
    assert listed_names("--sort-by", "name") == ["b", "c"]
    assert listed_names("--sort-by", "name", "--all") == ["a", "b", "c"]
    assert detcloud("m", "unarchive", "a").out == "model a is not archived\n"
    assert listed_names("--owner", "bob") == []


def test_versions_are_registered_changed_and_deleted(detcloud: Detcloud) -> None:
    detcloud("m", "create", "digits")
    registered = detcloud("m", "register-version", "digits", UUID[:8], "--comment", "good")
    assert registered.out == f"checkpoint {UUID} is version 1 of digits\n"
    again = detcloud("m", "register-version", "digits", UUID, "--name", "second", "--json")
    assert json.loads(again.out)["number"] == 2
    rows = detcloud("m", "list-versions", "digits", "--csv").out.splitlines()
    assert [row.partition(",20")[0] for row in rows[1:]] == [
        f"2,second,{UUID},1,2,N/A,N/A,user-1",
        f"1,N/A,{UUID},1,2,good,N/A,user-1",
    ]
    assert detcloud("m", "set-version", "digits", "1", "--notes", "see #7").code == 0
    version = json.loads(detcloud("m", "describe", "digits", "--version", "1", "--json").out)
    assert (version["notes"], version["comment"], version["name"]) == ("see #7", "good", "")
    assert detcloud("m", "set-version", "digits", "1").code == 1
    refused = detcloud("checkpoint", "delete", UUID, "--yes").err
    assert "model versions digits/1, digits/2 hold it" in refused
    assert detcloud("m", "delete-version", "digits", "1", "-y").out == (
        "version 1 of digits was deleted\n"
    )
    gone = detcloud("m", "describe", "digits", "--version", "1")
    assert gone.code == 3
    assert "`detcloud model list-versions NAME` shows what exists" in gone.err


def test_checkpoints_are_pinned_and_unpinned(detcloud: Detcloud) -> None:
    pinned = detcloud("checkpoint", "pin", UUID[:8])
    assert pinned.out == f"checkpoint {UUID} is pinned by user-1\n"
    refused = detcloud("checkpoint", "delete", UUID, "--yes").err
    assert "user-1 pinned it" in refused
    detcloud("m", "create", "digits")
    detcloud("m", "register-version", "digits", UUID)
    assert detcloud("c", "unpin", UUID).out == (
        f"checkpoint {UUID} is still kept by model version digits/1\n"
    )
    detcloud("m", "delete", "digits", "-y")
    assert detcloud("c", "unpin", UUID).out == f"checkpoint {UUID} is not pinned\n"


def test_client_manages_models_and_versions() -> None:
    client = Client()
    model = client.create_model("digits", labels=["a"])
    with pytest.raises(DetcloudError, match="model digits has no versions"):
        model.version()
    seen = model.revision
    model.set(notes="n")
    with pytest.raises(ApiError, match="changed in the meantime"):
        model.set(notes="m", revision=seen)
    version = model.register_version(UUID, name="first")
    assert repr(version) == "ModelVersion('digits', 1)"
    assert version.checkpoint().uuid == UUID
    version.set(comment="c")
    assert [item.comment for item in model.versions()] == ["c"]
    assert model.version().number == model.version(1).number == 1
    version.delete()
    model.archive()
    assert client.models() == []
    assert [item.name for item in client.models(archived=True)] == ["digits"]
    model.refresh()
    assert (model.archived, model.notes) == (True, "n")
    model.delete()
    assert client.models(archived=None) == []
    with pytest.raises(DetcloudError, match="not by 'size'"):
        client.models(sort_by="size")
    with pytest.raises(DetcloudError, match="no workspace has a comma"):
        client.models(workspaces=["a,b"])


def test_determined_scripts_manage_models_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determined_client, "_cluster", None)
    model = determined_client.create_model("digits", "ten", {"a": 1}, ["x"], "Vision")
    assert model.get_version() is None
    model.add_metadata({"b": 2})
    model.remove_metadata(["a"])
    assert (model.metadata, model.workspace, model.labels) == ({"b": 2}, "Vision", ["x"])
    version = model.register_version(UUID)
    version.set_name("first")
    second = model.register_version(UUID)
    assert (second.model_version, second.model_name) == (2, "digits")
    assert [item.model_version for item in model.get_versions()] == [2, 1]
    oldest = model.list_versions(OrderBy.ASC)[0]
    assert (oldest.name, oldest.checkpoint.uuid) == ("first", UUID)
    second.delete()
    assert model.get_version().model_version == model.get_version(1).model_version == 1
    determined_client.create_model("other")
    by_name = determined_client.get_models(order_by=OrderBy.DESC)
    assert [item.name for item in by_name] == ["other", "digits"]
    by_text = determined_client.list_models(ModelSortBy.DESCRIPTION, workspace_names=["Vision"])
    assert [item.name for item in by_text] == ["digits"]
    with pytest.raises(DetcloudError, match="list_models does not support model_id"):
        determined_client.get_models(model_id=3)
    digits = determined_client.get_model("digits")
    digits.move_to_workspace("Other")
    digits.archive()
    assert [item.name for item in determined_client.get_models()] == ["other"]
    digits.unarchive()
    digits.delete()
    assert [item.name for item in determined_client.get_models()] == ["other"]
