"""Users' edits of the metadata of trials and checkpoints, and revisions of the metadata."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.access.principals import Role
from control_plane.actors.metadata_edits import MetadataEdit, decode_edit, edit_between, encode_edit
from control_plane.agents.reports import METADATA_BYTES_MAX
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_collection import collect, delete, kill
from tests.unit.queries.test_queries_trials import checkpoint

UUID = "12345678-0000-4000-8000-000000000001"
CANARY = "<img src=x onerror=alert(1)>"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.floats(0, 1) | st.text("ab", max_size=1),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner),
    max_leaves=4,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON)


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent with trial 1, which has a checkpoint and metadata from the training code."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    set_by_code(agent, {"fold": 1, "kind": "cv"})
    checkpoint(cluster, agent, 1, UUID, 5)
    return agent


def set_by_code(agent: Agent, metadata: dict[str, Any]) -> None:
    assert agent.report("1.1", {"kind": "trial_metadata", "metadata": metadata}).status == 200


def patch(cluster: Cluster, path: str, key: str | None = None, **content: Any) -> Answer:
    headers = [] if key is None else [("idempotency-key", key)]
    token = TOKENS[Role.USER]
    return call(cluster.app, "PATCH", V1 + path, token=token, headers=headers, content=content)


@given(OBJECTS, OBJECTS, OBJECTS, OBJECTS)
def test_edited_keys_outlive_later_values_of_the_code(
    own: dict[str, Any], first: dict[str, Any], wanted: dict[str, Any], later: dict[str, Any]
) -> None:
    before = edit_between(first, own, MetadataEdit())
    edit = edit_between(wanted, own, before)
    assert repr(sorted(edit.merge_edit(own).items())) == repr(sorted(wanted.items()))
    assert decode_edit(encode_edit(edit)) == edit
    shown = edit.merge_edit(later)
    touched = {*edit.values, *edit.removed}
    assert {key: shown[key] for key in shown.keys() & touched} == edit.values
    assert {k: v for k, v in shown.items() if k not in touched} == {
        key: value for key, value in later.items() if key not in touched
    }


def test_trial_is_edited_while_the_code_sets_metadata(cluster: Cluster, agent: Agent) -> None:
    read = cluster.get("/trials/1").json
    assert read["metadata"] == {"fold": 1, "kind": "cv"}
    wanted = {"fold": 1, "note": CANARY}
    answer = patch(cluster, "/trials/1", metadata=wanted, revision=read["metadata_revision"])
    assert (answer.status, answer.json["metadata"]) == (200, wanted)
    # `fold` still has the code's value; `kind` was removed by the edit and stays removed.
    set_by_code(agent, {"fold": 2, "kind": "cv", "epoch": 3})
    shown = {"fold": 2, "epoch": 3, "note": CANARY}
    assert cluster.get("/trials/1").json["metadata"] == shown
    found = cluster.get("/experiments/1/trials?metadata=fold=2").json["items"]
    assert [item["id"] for item in found] == [1]
    assert cluster.get("/experiments/1/trials?metadata=kind=cv").json["items"] == []
    # The next run starts with the edited metadata.
    agent.report("1.1", {"kind": "exited", "reason": "errored", "code": 1}, writer="agent")
    agent.known.remove("1.1")
    specs = [entry["spec"] for entry in agent.sync().json["desired"] if "spec" in entry]
    assert [spec["metadata"] for spec in specs if spec["trial_id"] == 1] == [shown]


def test_edited_checkpoint_metadata_appears_in_every_answer(cluster: Cluster, agent: Agent) -> None:
    read = cluster.get(f"/checkpoints/{UUID}").json
    assert read["metadata"] == {"note": "n"}
    path = f"/checkpoints/{UUID[:8]}"
    answer = patch(cluster, path, metadata={"best": True}, revision=read["metadata_revision"])
    assert (answer.status, answer.json["metadata"]) == (200, {"best": True})
    for listed in ("/trials/1/checkpoints", "/experiments/1/checkpoints"):
        [item] = cluster.get(listed).json["items"]
        assert item == answer.json


@pytest.mark.parametrize("path", ["/trials/1", f"/checkpoints/{UUID}"])
def test_rejects_edit_of_an_older_revision(cluster: Cluster, agent: Agent, path: str) -> None:
    revision = cluster.get(path).json["metadata_revision"]
    first = patch(cluster, path, key="k", metadata={"a": 1}, revision=revision)
    assert patch(cluster, path, key="k", metadata={"a": 1}, revision=revision).body == first.body
    late = patch(cluster, path, metadata={"a": 2}, revision=revision)
    assert (late.status, late.code) == (409, "conflict")
    assert "was changed in the meantime" in late.json["error"]["message"]
    assert cluster.get(path).json["metadata"] == {"a": 1}
    # Without a revision, the last edit wins.
    assert patch(cluster, path, metadata={"a": 3}).json["metadata"] == {"a": 3}


@pytest.mark.parametrize("path", ["/trials/1", f"/checkpoints/{UUID}"])
def test_rejects_large_metadata_and_other_fields(cluster: Cluster, agent: Agent, path: str) -> None:
    # {"k": "..."} has 9 bytes besides the text.
    fits = {"k": "x" * (METADATA_BYTES_MAX - 9)}
    assert patch(cluster, path, metadata=fits).status == 200
    long = patch(cluster, path, metadata={"k": fits["k"] + "x"})
    assert (long.status, long.code) == (422, "invalid")
    assert patch(cluster, path, metadata={}, state="COMPLETED").status == 422
    assert patch(cluster, path, metadata=[1]).status == 422
    assert patch(cluster, path).status == 422
    assert cluster.get(path).json["metadata"] == fits
    assert patch(cluster, path.replace("1", "9"), metadata={}).status == 404
    assert call(cluster.app, "PATCH", V1 + path, token=agent.token, content={}).status == 403


def test_experiment_deletion_removes_edits(cluster: Cluster, agent: Agent) -> None:
    for path in ("/trials/1", f"/checkpoints/{UUID}"):
        assert patch(cluster, path, metadata={"a": 1}).status == 200
    kill(cluster, agent)
    assert delete(cluster, "/experiments/1").status == 200
    refused = patch(cluster, "/trials/1", metadata={"a": 2})
    assert (refused.status, refused.code) == (409, "conflict")
    collect(cluster)
    assert cluster.services.table.query("trial#1", "V#", "V$").rows == ()


def test_rejects_experiment_change_of_an_older_revision(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    path = "/experiments/1"
    read = cluster.get(path).json
    changed = patch(cluster, path, description="one", revision=read["revision"])
    assert changed.status == 200
    late = patch(cluster, path, labels=["x"], revision=read["revision"])
    assert (late.status, late.code) == (409, "conflict")
    assert "experiment 1 was changed in the meantime" in late.json["error"]["message"]
    again = patch(cluster, path, labels=["x"], revision=changed.json["revision"])
    assert (again.json["description"], again.json["labels"]) == ("one", ["x"])
    # The revision covers descriptive settings only, not the weight.
    weighed = patch(cluster, path, weight=2.0, revision=again.json["revision"])
    assert weighed.json["revision"] == again.json["revision"]
