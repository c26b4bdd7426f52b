"""Data keys and registry logins of runs, in clusters with an issuer."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.agents.storage_credentials import StorageCredentials, StorageToken
from control_plane.agents.trial_grants import DataForm, RegistryLogin
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call

IMAGE = "111111111111.dkr.ecr.eu-west-1.amazonaws.com/ml/trial:1"
WITH_IMAGE = CONFIG + f"environment: {{image: '{IMAGE}'}}\n"


@dataclass
class FakeGrants:
    """An issuer that records the calls.

    Data keys are issued in `pools`, as tokens if `data_form` is `google`; logins for `IMAGE` only.
    """

    data_form: DataForm = "given"
    pools: tuple[str, ...] = ("default",)
    fails: bool = False
    calls: list[tuple[str, str]] = field(default_factory=list)

    def gives_data_keys(self, pool: str) -> bool:
        return pool in self.pools

    def issue_data_keys(self, name: str, pool: str) -> StorageCredentials | StorageToken:
        if self.fails:
            raise TimeoutError("the token service did not answer")
        self.calls.append((name, pool))
        if self.data_form == "google":
            return StorageToken("hush", NOW_MS + 3_600_000, "data@acme")
        return StorageCredentials("KEY", "hush", "session", NOW_MS + 3_600_000)

    def gives_login(self, image: str) -> bool:
        return image == IMAGE

    def issue_login(self, name: str, image: str) -> RegistryLogin:
        if self.fails:
            raise TimeoutError("the token service did not answer")
        self.calls.append((name, image))
        return RegistryLogin("AWS", f"hush{len(self.calls)}")


@pytest.fixture
def grants() -> FakeGrants:
    return FakeGrants()


@pytest.fixture
def cluster(tmp_path: Path, grants: FakeGrants) -> Cluster:
    return build_cluster(tmp_path, trial_grants=grants)


def ask(agent: Agent, kind: str, token: str | None = None, **content: str) -> Answer:
    path = f"{V1}/agents/{agent.name}/{kind}-credentials"
    return call(agent.cluster.app, "POST", path, token=token or agent.token, content=content)


def test_spec_announces_data_and_registry_credentials(cluster: Cluster, grants: FakeGrants) -> None:
    cluster.create(WITH_IMAGE)
    spec = Agent(cluster).sync().json["desired"][0]["spec"]
    assert (spec["data_credentials"], spec["registry_credentials"]) == ("given", "given")
    grants.pools = ()
    cluster.create(CONFIG)
    spec = Agent(cluster, "b").sync().json["desired"][0]["spec"]
    assert "data_credentials" not in spec
    assert "registry_credentials" not in spec


def test_run_gets_the_data_keys_of_the_pool(cluster: Cluster, grants: FakeGrants) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    assert ask(agent, "data", allocation="1.1").json == {
        "key_id": "KEY",
        "secret": "hush",
        "session_token": "session",
        "expires_ms": NOW_MS + 3_600_000,
    }
    assert grants.calls == [("trial-1.1", "default")]
    grants.pools = ()
    assert ask(agent, "data", allocation="1.1").code == "not_found"


def test_run_gets_a_token_of_a_cloud_with_tokens(cluster: Cluster, grants: FakeGrants) -> None:
    grants.data_form = "google"
    cluster.create(CONFIG)
    agent = Agent(cluster)
    assert agent.sync().json["desired"][0]["spec"]["data_credentials"] == "google"
    agent.take_work()
    assert ask(agent, "data", allocation="1.1").json == {
        "access_token": "hush",
        "expires_ms": NOW_MS + 3_600_000,
        "account": "data@acme",
    }


def test_image_pulls_get_separate_logins(cluster: Cluster, grants: FakeGrants) -> None:
    cluster.create(WITH_IMAGE)
    agent = Agent(cluster)
    agent.take_work()
    for number in (1, 2):
        answer = ask(agent, "registry", allocation="1.1", image=IMAGE)
        assert answer.json == {"username": "AWS", "password": f"hush{number}"}
    assert grants.calls == [("pull-1.1", IMAGE)] * 2
    # An image other than the trial's is refused, even if the cluster could pull it.
    other = ask(agent, "registry", allocation="1.1", image=IMAGE.replace(":1", ":2"))
    assert other.code == "forbidden"


@pytest.mark.parametrize("kind", ["data", "registry"])
def test_trial_grants_are_refused_to_other_machines(
    cluster: Cluster, grants: FakeGrants, kind: str
) -> None:
    cluster.create(WITH_IMAGE)
    agent, other = Agent(cluster, "a"), Agent(cluster, "b")
    agent.take_work()
    more = {"image": IMAGE} if kind == "registry" else {}
    assert ask(other, kind, allocation="1.1", **more).code == "forbidden"
    assert ask(agent, kind, token=other.token, allocation="1.1", **more).code == "forbidden"
    assert ask(agent, kind, token=TOKENS[Role.USER], allocation="1.1", **more).code == "forbidden"
    assert ask(agent, kind, allocation="1.2", **more).code == "forbidden"
    assert grants.calls == []
    grants.fails = True
    assert ask(agent, kind, allocation="1.1", **more).code == "unavailable"


def test_cluster_without_grants_gives_no_data_keys(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path)
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    assert ask(agent, "data", allocation="1.1").code == "not_found"
    assert "hush" not in repr(RegistryLogin("AWS", "hush"))
