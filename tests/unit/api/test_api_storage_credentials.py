"""A run of a trial gets keys for its own place in the bucket, and for nothing else."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control_plane.agents.storage_access import Access, StorageCredentials
from control_plane.api.auth import Role
from control_plane.config.storage import S3
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster, cluster
from tests.unit.api.exchange import Answer, call

BUCKET = "detcloud-vision-checkpoints"
OWN_KEYS = CONFIG + "checkpoint_storage: {type: s3, bucket: mine, access_key: A, secret_key: B}\n"


@dataclass
class Counter:
    """A vendor that remembers what it was asked for."""

    asked: list[tuple[str, Access]] = field(default_factory=list)
    fails: bool = False

    def vend(self, name: str, access: Access) -> StorageCredentials:
        if self.fails:
            raise TimeoutError("the token service did not answer")
        self.asked.append((name, access))
        return StorageCredentials("KEY", "hush", "session", NOW_MS + 3_600_000)


@pytest.fixture
def vendor() -> Counter:
    return Counter()


@pytest.fixture
def served(tmp_path: Path, vendor: Counter) -> Cluster:
    return cluster(tmp_path, vendor=vendor, checkpoints=S3(type="s3", bucket=BUCKET, prefix="team"))


def ask(agent: Agent, allocation: str, token: str | None = None) -> Answer:
    path = f"{V1}/agents/{agent.name}/storage-credentials"
    content = {"allocation": allocation}
    return call(agent.served.app, "POST", path, token=token or agent.token, content=content)


def test_a_run_may_write_below_its_epoch_and_read_below_its_trial(
    served: Cluster, vendor: Counter
) -> None:
    served.create(CONFIG)
    agent = Agent(served)
    assert agent.take_work() == ["1.1", "2.1"]
    assert ask(agent, "2.1").json == {
        "key_id": "KEY",
        "secret": "hush",
        "session_token": "session",
        "expires_ms": NOW_MS + 3_600_000,
    }
    assert vendor.asked == [("trial-2.1", Access(BUCKET, "team/1/2/1", ("team/1/2",)))]


def test_a_copy_also_reads_the_checkpoint_that_it_begins_from(
    served: Cluster, vendor: Counter
) -> None:
    served.create(CONFIG)
    first = Agent(served)
    first.take_work()
    path = "1/1/1/0b5c9d3e-0000-4000-8000-000000000001"
    saved = {"uuid": path.rpartition("/")[2], "path": path, "steps_completed": 5}
    intent = {"kind": "checkpoint_intent", **saved}
    size = {"size_bytes": 1, "files": 1, "manifest_sha256": "0" * 64, "metadata": {}}
    first.report("1.1", intent, {"kind": "checkpoint", **saved, **size})
    warm = CONFIG.replace("searcher: {", f"searcher: {{source_checkpoint_uuid: {saved['uuid']}, ")
    assert served.create(warm).status == 201
    second = Agent(served, "other")
    allocation = second.take_work()[0]
    assert ask(second, allocation).status == 200
    trial = allocation.partition(".")[0]
    assert vendor.asked[-1][1].reads == (f"team/2/{trial}", f"team/{path}")


def test_the_spec_says_that_keys_are_given(served: Cluster) -> None:
    served.create(CONFIG)
    (entry, _) = Agent(served).sync().json["desired"]
    assert entry["spec"]["storage"] == {
        "type": "s3",
        "bucket": BUCKET,
        "prefix": "team",
        "credentials": "given",
    }


def test_nobody_gets_the_keys_of_another_machines_run(served: Cluster, vendor: Counter) -> None:
    served.create(CONFIG)
    agent, other = Agent(served, "a"), Agent(served, "b")
    agent.take_work()
    assert ask(other, "1.1").code == "forbidden"
    assert ask(agent, "1.1", token=other.token).code == "forbidden"
    assert ask(agent, "1.2").code == "forbidden"
    assert ask(agent, "7.1").code == "forbidden"
    assert ask(agent, "1.1", token=TOKENS[Role.USER]).code == "forbidden"
    assert vendor.asked == []


def test_storage_with_keys_of_its_own_gets_none(served: Cluster, vendor: Counter) -> None:
    served.create(OWN_KEYS)
    agent = Agent(served)
    (entry, _) = agent.sync().json["desired"]
    assert "credentials" not in entry["spec"]["storage"]
    assert ask(agent, entry["allocation"]).code == "not_found"
    assert vendor.asked == []


def test_the_clusters_own_credentials_are_shown_to_no_other_server(served: Cluster) -> None:
    other = "{type: s3, bucket: mine, endpoint_url: 'https://elsewhere.example'"
    refused = served.create(CONFIG + f"checkpoint_storage: {other}}}\n")
    assert refused.code == "invalid"
    assert "endpoint_url" in refused.body.decode()
    keys = ", access_key: A, secret_key: B"
    assert served.create(CONFIG + f"checkpoint_storage: {other}{keys}}}\n").status == 201


def test_a_token_service_that_does_not_answer_is_asked_again(
    served: Cluster, vendor: Counter
) -> None:
    served.create(CONFIG)
    agent = Agent(served)
    agent.take_work()
    vendor.fails = True
    assert ask(agent, "1.1").code == "unavailable"


def test_a_cluster_that_gives_out_nothing_says_so(tmp_path: Path) -> None:
    served = cluster(tmp_path)
    served.create(CONFIG)
    agent = Agent(served)
    agent.take_work()
    assert ask(agent, "1.1").code == "not_found"


def test_keys_do_not_show_themselves() -> None:
    keys = StorageCredentials("KEY", "hush", "session", NOW_MS)
    assert repr(keys) == f"StorageCredentials(key_id='KEY', expires_ms={NOW_MS})"
