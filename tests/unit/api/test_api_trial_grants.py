"""A run of a trial gets keys for its code and a login for its image, where the cluster has such."""

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
    """Gives keys, or tokens if `data_form` is Google's, in the pool `default` and logins for one
    image, and records who asked.
    """

    data_form: DataForm = "given"
    pools: tuple[str, ...] = ("default",)
    fails: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)

    def gives_data_keys(self, pool: str) -> bool:
        return pool in self.pools

    def issue_data_keys(self, name: str, pool: str) -> StorageCredentials | StorageToken:
        if self.fails:
            raise TimeoutError("the token service did not answer")
        self.asked.append((name, pool))
        if self.data_form == "google":
            return StorageToken("hush", NOW_MS + 3_600_000, "data@acme")
        return StorageCredentials("KEY", "hush", "session", NOW_MS + 3_600_000)

    def gives_login(self, image: str) -> bool:
        return image == IMAGE

    def issue_login(self, name: str, image: str) -> RegistryLogin:
        if self.fails:
            raise TimeoutError("the token service did not answer")
        self.asked.append((name, image))
        return RegistryLogin("AWS", f"hush{len(self.asked)}")


@pytest.fixture
def grants() -> FakeGrants:
    return FakeGrants()


@pytest.fixture
def cluster(tmp_path: Path, grants: FakeGrants) -> Cluster:
    return build_cluster(tmp_path, trial_grants=grants)


def ask(agent: Agent, kind: str, token: str | None = None, **content: str) -> Answer:
    path = f"{V1}/agents/{agent.name}/{kind}-credentials"
    return call(agent.cluster.app, "POST", path, token=token or agent.token, content=content)


def test_the_spec_says_what_may_be_asked_for(cluster: Cluster, grants: FakeGrants) -> None:
    cluster.create(WITH_IMAGE)
    spec = Agent(cluster).sync().json["desired"][0]["spec"]
    assert (spec["data_credentials"], spec["registry_credentials"]) == ("given", "given")
    grants.pools = ()
    cluster.create(CONFIG)
    spec = Agent(cluster, "b").sync().json["desired"][0]["spec"]
    assert "data_credentials" not in spec
    assert "registry_credentials" not in spec


def test_the_code_of_a_run_gets_the_keys_of_its_pool(cluster: Cluster, grants: FakeGrants) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    assert ask(agent, "data", allocation="1.1").json == {
        "key_id": "KEY",
        "secret": "hush",
        "session_token": "session",
        "expires_ms": NOW_MS + 3_600_000,
    }
    assert grants.asked == [("trial-1.1", "default")]
    grants.pools = ()
    assert ask(agent, "data", allocation="1.1").code == "not_found"


def test_the_code_of_a_run_gets_a_token_where_the_cloud_has_tokens(
    cluster: Cluster, grants: FakeGrants
) -> None:
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


def test_each_pull_gets_a_login_of_its_own(cluster: Cluster, grants: FakeGrants) -> None:
    cluster.create(WITH_IMAGE)
    agent = Agent(cluster)
    agent.take_work()
    for number in (1, 2):
        answer = ask(agent, "registry", allocation="1.1", image=IMAGE)
        assert answer.json == {"username": "AWS", "password": f"hush{number}"}
    assert grants.asked == [("pull-1.1", IMAGE)] * 2
    # Not for an image that the trial does not run in, whoever may pull it.
    other = ask(agent, "registry", allocation="1.1", image=IMAGE.replace(":1", ":2"))
    assert other.code == "forbidden"


@pytest.mark.parametrize("kind", ["data", "registry"])
def test_nobody_gets_what_is_another_machines(
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
    assert grants.asked == []
    grants.fails = True
    assert ask(agent, kind, allocation="1.1", **more).code == "unavailable"


def test_a_cluster_that_gives_nothing_says_so(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path)
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    assert ask(agent, "data", allocation="1.1").code == "not_found"
    assert "hush" not in repr(RegistryLogin("AWS", "hush"))
