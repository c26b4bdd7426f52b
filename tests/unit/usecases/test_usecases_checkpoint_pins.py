"""Pins of users on checkpoints: permissions, and protection from deletion."""

from collections.abc import Callable, Sequence

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.actors.pins import PINS, Pin, decode_pin, encode_pin
from control_plane.errors import RequestError
from control_plane.state.table import Expect, Key, Put, Write
from control_plane.usecases.checkpoint_pins import USERS_OF_CHECKPOINT_MAX, pin_checkpoint
from simulator.faults.table_faults import InterleavingTable
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.table_decorators import recorded_table
from tests.unit.api.test_api_collection import collect, kill
from tests.unit.queries.test_queries_trials import checkpoint

FIRST, SECOND = (f"{n:08d}-0000-4000-8000-000000000000" for n in (11, 12))


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent with trial 1, which has checkpoints at batches 2 and 4."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    for uuid, steps in ((FIRST, 2), (SECOND, 4)):
        checkpoint(cluster, agent, 1, uuid, steps)
    return agent


def ask(
    cluster: Cluster, method: str, path: str, role: Role = Role.USER, key: str | None = None
) -> Answer:
    headers = [] if key is None else [("idempotency-key", key)]
    return call(cluster.app, method, V1 + path, token=TOKENS[role], headers=headers)


def set_pin(cluster: Cluster, role: Role = Role.USER, uuid: str = FIRST) -> Answer:
    return ask(cluster, "POST", f"/checkpoints/{uuid}/pin", role)


def remove_pin(cluster: Cluster, role: Role = Role.USER, uuid: str = FIRST) -> Answer:
    return ask(cluster, "DELETE", f"/checkpoints/{uuid}/pin", role)


def pinning_users(cluster: Cluster, uuid: str = FIRST) -> tuple[str, ...]:
    row = cluster.services.table.get(Key(PINS, uuid))
    return decode_pin(row.body).users if row else ()


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["message"]


def test_pin_without_users_keeps_the_old_format() -> None:
    assert encode_pin(Pin((1,))) == b'{"by": [1], "gone": false}'
    assert decode_pin(b'{"by": [1], "gone": false, "versions": ["m/1"]}').users == ()
    pin = Pin((1,), versions=("m/1",), users=("ada", "bob"))
    assert decode_pin(encode_pin(pin)) == pin
    assert pin.holders_text() == (
        "experiment 1 started from it, and model version m/1 holds it, and ada, bob pinned it"
    )


def test_users_have_separate_pins(cluster: Cluster, agent: Agent) -> None:
    pinned = set_pin(cluster, uuid=FIRST[:8])
    expected = {"uuid": FIRST, "users": ["user-1"], "versions": [], "experiments": []}
    assert (pinned.status, pinned.json) == (200, expected)
    assert set_pin(cluster).json == expected
    assert set_pin(cluster, Role.ADMIN).json["users"] == ["user-1", "admin-1"]
    assert remove_pin(cluster).json["users"] == ["admin-1"]
    assert refusal(remove_pin(cluster)) == (
        403,
        f"checkpoint {FIRST} is pinned by admin-1: only they or an admin can unpin it",
    )
    set_pin(cluster)
    assert remove_pin(cluster, Role.ADMIN).json["users"] == []
    assert cluster.services.table.get(Key(PINS, FIRST)) is None
    assert remove_pin(cluster).status == 200


def test_checkpoint_shows_holders_of_the_pin(cluster: Cluster, agent: Agent) -> None:
    pin = Pin((7,), versions=("m/1",), users=("ada",))
    put = Put(Key(PINS, SECOND), NOW_MS, encode_pin(pin), Expect.ABSENT)
    cluster.services.table.commit((put,))
    nothing: dict[str, list[str]] = {"users": [], "versions": [], "experiments": []}
    everything = {"users": ["ada"], "versions": ["m/1"], "experiments": [7]}
    for path in ("/experiments/1/checkpoints", "/trials/1/checkpoints"):
        with recorded_table(cluster) as table:
            items = cluster.get(path).json["items"]
        assert [item["pinned"] for item in items] == [False, True]
        assert [item["pinned_by"] for item in items] == [nothing, everything]
        # One call reads all pins.
        pins_read = [sum(key.partition == PINS for key in keys) for keys in table.keys_read]
        assert [count for count in pins_read if count] == [2]
    described = cluster.get(f"/checkpoints/{SECOND}").json
    assert (described["pinned"], described["pinned_by"]) == (True, everything)


def test_repeated_request_takes_effect_once(cluster: Cluster, agent: Agent) -> None:
    path = f"/checkpoints/{FIRST}/pin"
    first = ask(cluster, "POST", path, key="k")
    remove_pin(cluster)
    assert ask(cluster, "POST", path, key="k").body == first.body
    assert pinning_users(cluster) == ()


def test_rejects_unknown_checkpoints_and_agents(cluster: Cluster, agent: Agent) -> None:
    assert set_pin(cluster, uuid="abcdef01").status == 404
    assert remove_pin(cluster, uuid="abcdef01").status == 404
    for method in ("POST", "DELETE"):
        path = f"{V1}/checkpoints/{FIRST}/pin"
        assert call(cluster.app, method, path, token=agent.token).status == 403


def test_pin_prevents_deletion(cluster: Cluster, agent: Agent) -> None:
    set_pin(cluster, Role.ADMIN)
    kill(cluster, agent)
    path = f"{V1}/experiments/1"
    none = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
    assert call(cluster.app, "PATCH", path, token=TOKENS[Role.USER], content=none).status == 200
    collect(cluster)
    states = {uuid: cluster.get(f"/checkpoints/{uuid}").json["state"] for uuid in (FIRST, SECOND)}
    assert states == {FIRST: "COMPLETED", SECOND: "DELETED"}
    assert refusal(ask(cluster, "DELETE", f"/checkpoints/{FIRST}")) == (
        409,
        f"checkpoint {FIRST} cannot be deleted: admin-1 pinned it",
    )
    assert refusal(ask(cluster, "DELETE", "/experiments/1")) == (
        409,
        f"admin-1 pinned its checkpoint {FIRST}; `detcloud checkpoint unpin` releases it",
    )
    assert refusal(set_pin(cluster, uuid=SECOND)) == (
        409,
        f"checkpoint {SECOND} was deleted, and cannot be pinned",
    )
    remove_pin(cluster, Role.ADMIN)
    assert ask(cluster, "DELETE", "/experiments/1").json["state"] == "DELETING"


def test_user_pin_and_version_pin_are_independent(cluster: Cluster, agent: Agent) -> None:
    set_pin(cluster)
    token = TOKENS[Role.USER]
    call(cluster.app, "POST", f"{V1}/models", token=token, content={"name": "m"})
    content = {"checkpoint_uuid": FIRST}
    call(cluster.app, "POST", f"{V1}/models/m/versions", token=token, content=content)
    assert remove_pin(cluster).json["versions"] == ["m/1"]
    assert set_pin(cluster).json["versions"] == ["m/1"]
    ask(cluster, "DELETE", "/models/m")
    assert pinning_users(cluster) == ("user-1",)


def run_before_commit(cluster: Cluster, other: Callable[[], object]) -> None:
    """Run `other` before the next commit that writes the pin of FIRST, once."""

    def writes_pin(writes: Sequence[Write]) -> bool:
        return any(write.key == Key(PINS, FIRST) for write in writes)

    cluster.services.engine.table = InterleavingTable(cluster.services.table, other, writes_pin)


def test_concurrent_deletion_before_pin_wins(cluster: Cluster, agent: Agent) -> None:
    deleted: list[Answer] = []

    def delete() -> None:
        deleted.append(ask(cluster, "DELETE", f"/checkpoints/{FIRST}"))

    run_before_commit(cluster, delete)
    assert refusal(set_pin(cluster)) == (
        409,
        f"checkpoint {FIRST} was deleted, and cannot be pinned",
    )
    assert [answer.json["state"] for answer in deleted] == ["DELETING"]


def test_concurrent_pin_before_deletion_wins(cluster: Cluster, agent: Agent) -> None:
    run_before_commit(cluster, lambda: set_pin(cluster))
    answer = ask(cluster, "DELETE", f"/checkpoints/{FIRST}")
    assert refusal(answer) == (409, f"checkpoint {FIRST} cannot be deleted: user-1 pinned it")
    assert cluster.get(f"/checkpoints/{FIRST}").json["state"] == "COMPLETED"


def test_concurrent_pins_of_two_users_are_both_kept(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_before_commit(cluster, lambda: set_pin(cluster, Role.ADMIN))
    assert set_pin(cluster).json["users"] == ["admin-1", "user-1"]


def test_users_per_pin_are_limited(cluster: Cluster, agent: Agent) -> None:
    users = tuple(f"user {n}" for n in range(USERS_OF_CHECKPOINT_MAX))
    body = encode_pin(Pin(users=users))
    cluster.services.table.commit((Put(Key(PINS, FIRST), NOW_MS, body, Expect.ABSENT),))
    assert "is already pinned by 100 users" in refusal(set_pin(cluster))[1]
    caller = Principal(users[0], Role.USER)
    again = pin_checkpoint(cluster.services, FIRST, caller, lambda _: ())
    assert again.pin.users == users
    with pytest.raises(RequestError, match="100 users"):
        pin_checkpoint(cluster.services, FIRST, Principal("u", Role.USER), lambda _: ())
