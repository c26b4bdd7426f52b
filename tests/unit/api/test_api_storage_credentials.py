"""Storage credentials of a run, limited to the trial's folders in the bucket."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.agents.storage_credentials import StorageAccess, StorageCredentials, StorageToken
from control_plane.checkpoint_stores.types.gcs import Gcs
from control_plane.checkpoint_stores.types.s3 import S3
from tests.conftest import require
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call

BUCKET = "detcloud-vision-checkpoints"
OWN_KEYS = CONFIG + "checkpoint_storage: {type: s3, bucket: mine, access_key: A, secret_key: B}\n"


@dataclass
class FakeIssuer:
    """A credential issuer that records the calls."""

    calls: list[tuple[str, StorageAccess]] = field(default_factory=list)
    fails: bool = False
    store_type: str = "s3"

    def issue_credentials(self, name: str, access: StorageAccess) -> StorageCredentials:
        if self.fails:
            raise TimeoutError("the token service did not answer")
        self.calls.append((name, access))
        return StorageCredentials("KEY", "hush", "session", NOW_MS + 3_600_000)


@pytest.fixture
def issuer() -> FakeIssuer:
    return FakeIssuer()


@pytest.fixture
def cluster(tmp_path: Path, issuer: FakeIssuer) -> Cluster:
    return build_cluster(
        tmp_path, credential_issuer=issuer, checkpoints=S3(type="s3", bucket=BUCKET, prefix="team")
    )


def ask(agent: Agent, allocation: str, token: str | None = None) -> Answer:
    path = f"{V1}/agents/{agent.name}/storage-credentials"
    content = {"allocation": allocation}
    return call(agent.cluster.app, "POST", path, token=token or agent.token, content=content)


def test_run_writes_below_the_epoch_and_reads_below_the_trial(
    cluster: Cluster, issuer: FakeIssuer
) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    assert agent.take_work() == ["1.1", "2.1"]
    assert ask(agent, "2.1").json == {
        "key_id": "KEY",
        "secret": "hush",
        "session_token": "session",
        "expires_ms": NOW_MS + 3_600_000,
    }
    own, events = "team/1/2", "team/tensorboard/1/2"
    access = StorageAccess(BUCKET, (f"{own}/1", events), (own,))
    assert issuer.calls == [("trial-2.1", access)]


def test_warm_started_run_also_reads_the_source_checkpoint(
    cluster: Cluster, issuer: FakeIssuer
) -> None:
    cluster.create(CONFIG)
    first = Agent(cluster)
    first.take_work()
    path = "1/1/1/0b5c9d3e-0000-4000-8000-000000000001"
    saved = {"uuid": path.rpartition("/")[2], "path": path, "steps_completed": 5}
    intent = {"kind": "checkpoint_intent", **saved}
    size = {"size_bytes": 1, "files": 1, "manifest_sha256": "0" * 64, "metadata": {}}
    first.report("1.1", intent, {"kind": "checkpoint", **saved, **size})
    warm = CONFIG.replace("searcher: {", f"searcher: {{source_checkpoint_uuid: {saved['uuid']}, ")
    assert cluster.create(warm).status == 201
    second = Agent(cluster, "other")
    allocation = second.take_work()[0]
    assert ask(second, allocation).status == 200
    trial = allocation.partition(".")[0]
    assert issuer.calls[-1][1].reads == (f"team/2/{trial}", f"team/{path}")


def test_spec_announces_storage_credentials(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    (entry, _) = Agent(cluster).sync().json["desired"]
    assert entry["spec"]["storage"] == {
        "type": "s3",
        "bucket": BUCKET,
        "prefix": "team",
        "credentials": "given",
    }


@dataclass
class FakeTokenIssuer:
    """An issuer of tokens for Google's stores."""

    store_type: str = "gcs"

    def issue_credentials(self, name: str, access: StorageAccess) -> StorageToken:
        return StorageToken(f"token of {name} in {access.bucket}", NOW_MS + 3_600_000)


def test_issuer_gives_credentials_for_one_store_type_only(
    tmp_path: Path,
) -> None:
    require("boto3")
    cluster = build_cluster(
        tmp_path, credential_issuer=FakeTokenIssuer(), checkpoints=Gcs(type="gcs", bucket=BUCKET)
    )
    cluster.create(CONFIG)
    cluster.create(CONFIG + "checkpoint_storage: {type: s3, bucket: theirs}\n")
    agent = Agent(cluster)
    entries = {item["allocation"]: item["spec"]["storage"] for item in agent.sync().json["desired"]}
    stores = {name: (entry["type"], entry.get("credentials")) for name, entry in entries.items()}
    given, none = ("gcs", "given"), ("s3", None)
    # A trial of each experiment: the first experiment has trials 1 and 2.
    assert stores == {"1.1": given, "3.1": none}
    assert ask(agent, "1.1").json == {
        "access_token": f"token of trial-1.1 in {BUCKET}",
        "expires_ms": NOW_MS + 3_600_000,
        "account": "",
    }
    assert ask(agent, "3.1").code == "not_found"


def test_storage_keys_are_refused_to_other_machines(cluster: Cluster, issuer: FakeIssuer) -> None:
    cluster.create(CONFIG)
    agent, other = Agent(cluster, "a"), Agent(cluster, "b")
    agent.take_work()
    assert ask(other, "1.1").code == "forbidden"
    assert ask(agent, "1.1", token=other.token).code == "forbidden"
    assert ask(agent, "1.2").code == "forbidden"
    assert ask(agent, "7.1").code == "forbidden"
    assert ask(agent, "1.1", token=TOKENS[Role.USER]).code == "forbidden"
    assert issuer.calls == []


def test_storage_with_configured_keys_gets_no_credentials(
    cluster: Cluster, issuer: FakeIssuer
) -> None:
    require("boto3")
    cluster.create(OWN_KEYS)
    agent = Agent(cluster)
    (entry, _) = agent.sync().json["desired"]
    assert "credentials" not in entry["spec"]["storage"]
    assert ask(agent, entry["allocation"]).code == "not_found"
    assert issuer.calls == []


def test_custom_endpoint_requires_configured_keys(cluster: Cluster) -> None:
    require("boto3")
    other = "{type: s3, bucket: mine, endpoint_url: 'https://elsewhere.example'"
    refused = cluster.create(CONFIG + f"checkpoint_storage: {other}}}\n")
    assert refused.code == "invalid"
    assert "endpoint_url" in refused.body.decode()
    keys = ", access_key: A, secret_key: B"
    assert cluster.create(CONFIG + f"checkpoint_storage: {other}{keys}}}\n").status == 201


def test_failing_token_service_is_unavailable(cluster: Cluster, issuer: FakeIssuer) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    issuer.fails = True
    assert ask(agent, "1.1").code == "unavailable"


def test_cluster_without_an_issuer_gives_no_storage_keys(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path)
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    assert ask(agent, "1.1").code == "not_found"


def test_repr_of_keys_hides_secrets() -> None:
    keys = StorageCredentials("KEY", "hush", "session", NOW_MS)
    text = f"StorageToken(expires_ms={NOW_MS}, account='a@p')"
    assert repr(StorageToken("hush", NOW_MS, "a@p")) == text
    assert repr(keys) == f"StorageCredentials(key_id='KEY', expires_ms={NOW_MS})"
