"""Rows that an older version stored and that today's gate refuses.

They are listed with the place of the damage, collected, replayed and deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.metadata_edits import METADATA_EDITS
from control_plane.agents.sessions import ENVIRONMENT, INTENTS, TRIAL_METADATA
from control_plane.state.table import Expect, Key, Put
from tests.hostile.api_doors import MARK
from tests.hostile.hostile_values import deep_mixture, deep_object
from tests.hostile.trial_doors import ManifestDoor
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import call
from tests.unit.api.test_api_collection import collect, kill
from tests.unit.queries.test_queries_trials import checkpoint

UUID = "0000000c-0000-4000-8000-000000000003"
TRIAL = addresses.trial(1)
PART = f"P#checkpoint/{UUID}"


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    checkpoint(cluster, agent, 1, UUID, 2)
    return agent


def rewrite(cluster: Cluster, sort: str, change: Callable[[bytes], bytes]) -> None:
    """Change a row of trial 1 as an older version could have written the row."""
    table, key = cluster.services.table, Key(TRIAL, sort)
    row = table.get(key)
    body = change(row.body if row else b"{}")
    revision = row.revision if row else 1
    table.commit([Put(key, revision, body, Expect.ANYTHING)])


def with_metadata(text: bytes) -> Callable[[bytes], bytes]:
    """Return a change that gives a stored record other metadata."""

    def change(body: bytes) -> bytes:
        fields = {**json.loads(body), "metadata": MARK}
        return json.dumps(fields).encode().replace(json.dumps(MARK).encode(), text)

    return change


DAMAGED_METADATA = {
    "100 objects": b'{"a":' * 100 + b"1" + b"}" * 100,
    "200 objects": deep_object(200),
    "252 objects": deep_object(252),
    "240 objects and lists": b'{"a":' + deep_mixture(240) + b"}",
    "NaN": b'{"a": [NaN]}',
    "half a surrogate pair": b'{"a": "\\ud800"}',
    "a NUL": b'{"a": "\\u0000"}',
    "400 digits": b'{"a": 1' + b"0" * 400 + b"}",
}


def check_everything_answers(cluster: Cluster) -> None:
    for path in (
        "/experiments",
        "/experiments/1",
        "/experiments/1/trials",
        "/experiments/1/checkpoints",
        "/experiments/1/checkpoint-gc",
        "/experiments/1/checkpoint-gc?delete_experiment=true",
        "/experiments/1/history",
        "/experiments/1/unrecorded-checkpoints",
        "/trials/1",
        "/trials/1/checkpoints",
        f"/checkpoints/{UUID}",
        f"/checkpoints/{UUID}/deletion",
    ):
        answer = cluster.get(path)
        assert answer.status == 200, (path, answer.body[:300])


def delete_experiment(cluster: Cluster, agent: Agent) -> None:
    kill(cluster, agent)
    path = f"{V1}/experiments/1"
    assert call(cluster.app, "DELETE", path, token=TOKENS[Role.USER]).status == 200
    collect(cluster)
    assert cluster.get("/experiments/1").status == 404


@pytest.mark.parametrize("what", DAMAGED_METADATA)
def test_damaged_metadata_of_a_checkpoint_block_no_request(
    cluster: Cluster, agent: Agent, what: str
) -> None:
    rewrite(cluster, PART, with_metadata(DAMAGED_METADATA[what]))
    check_everything_answers(cluster)
    shown = cluster.get(f"/checkpoints/{UUID}").json
    assert shown["metadata_damage"].startswith("a")
    assert shown["state"] == "COMPLETED"
    # A user's edit repairs the metadata.
    edit = {"metadata": {"a": 1}, "revision": shown["metadata_revision"]}
    path = f"{V1}/checkpoints/{UUID}"
    answer = call(cluster.app, "PATCH", path, token=TOKENS[Role.USER], content=edit)
    assert (answer.status, answer.json["metadata"], answer.json["metadata_damage"]) == (
        200,
        {"a": 1},
        "",
    )
    delete_experiment(cluster, agent)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\x00\xff", b"[]", b'{"checkpoint": {}}', b"1" * 5000]
)
def test_checkpoint_with_an_unreadable_record_is_shown_as_damaged(
    cluster: Cluster, agent: Agent, body: bytes
) -> None:
    rewrite(cluster, PART, lambda _: body)
    check_everything_answers(cluster)
    (shown,) = cluster.get("/trials/1/checkpoints").json["items"]
    assert (shown["uuid"], shown["state"], shown["trial_id"]) == (UUID, "DAMAGED", 1)
    assert shown["damage"].startswith("its record cannot be read: ")
    delete_experiment(cluster, agent)


@pytest.mark.parametrize("what", DAMAGED_METADATA)
@pytest.mark.parametrize("is_edit", [False, True], ids=["code", "edit"])
def test_damaged_metadata_of_a_trial_block_no_request(
    cluster: Cluster, what: str, *, is_edit: bool
) -> None:
    cluster.create(CONFIG)
    text = DAMAGED_METADATA[what]
    sort = METADATA_EDITS if is_edit else TRIAL_METADATA
    body = b'{"values": %s, "removed": []}' % text if is_edit else text
    rewrite(cluster, sort, lambda _: body)
    # The trial's run gets the metadata.
    agent = Agent(cluster)
    answer = agent.sync()
    assert answer.status == 200
    assert b"NaN" not in answer.body or b'"NaN"' in answer.body
    metadata = {entry["allocation"]: entry["spec"]["metadata"] for entry in answer.json["desired"]}
    assert (list(metadata["1.1"]), metadata["2.1"]) == (["a"], {})
    agent.known = ["1.1", "2.1"]
    checkpoint(cluster, agent, 1, UUID, 2)
    check_everything_answers(cluster)
    assert cluster.get("/trials/1").json["metadata_damage"].startswith("a")
    delete_experiment(cluster, agent)


@pytest.mark.parametrize(
    "sort", [f"{ENVIRONMENT}00000001#0", f"{INTENTS}00000001#0#00000000000007"]
)
@pytest.mark.parametrize(
    "body", [deep_object(252), b"{", b"[]", b"null", b'{"uuid": 1, "begun_ms": "x"}', b"\xff"]
)
def test_damaged_line_of_a_trial_blocks_no_request(
    cluster: Cluster, agent: Agent, sort: str, body: bytes
) -> None:
    rewrite(cluster, sort, lambda _: body)
    check_everything_answers(cluster)
    delete_experiment(cluster, agent)


@pytest.mark.parametrize("depth", [199, 200, 240, 252])
def test_upload_of_an_older_version_is_listed_replayed_and_deleted(
    cluster: Cluster, agent: Agent, depth: int
) -> None:
    # Older versions recorded metadata of any depth that the encoder took.
    door = ManifestDoor(cluster)
    manifest = {**door.manifest(), "metadata": MARK}
    text = json.dumps(manifest).encode().replace(json.dumps(MARK).encode(), deep_object(depth))
    answer = door.record(text, json.loads(deep_object(depth)))
    assert (answer.status, answer.json["metadata_damage"][:4]) == (200, "a.a.")
    check_everything_answers(cluster)
    replay = cluster.get("/experiments/1/replay")
    assert replay.status == 200
    assert [one["difference"] for one in replay.json["items"]] == [None] * 3
    delete_experiment(cluster, agent)
