"""Termination notices that an EC2 machine reads from its metadata, at the simulated EC2."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.__main__ import notice_source
from detcloud.agent.aws.metadata import Ec2Metadata, MetadataUnavailable
from detcloud.agent.aws.spot_notices import ACTION_PATH, INTERRUPTION_MS, Ec2Notices
from detcloud.shared.notices import FileNotices, Notice
from tests.emulators.ec2 import launching
from tests.emulators.ec2.region import Region
from tests.emulators.ec2.serving import Ec2Server, ec2_server
from tests.patience import wait_until

BEGAN_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Ec2Server]:
    with ec2_server(Region(lambda: BEGAN_MS)) as running:
        yield running


@pytest.fixture
def region(server: Ec2Server) -> Region:
    server.region = Region(lambda: BEGAN_MS)
    return server.region


@pytest.fixture
def machine(region: Region) -> str:
    params: dict[str, Any] = {
        "ImageId": next(iter(region.images)),
        "InstanceType": "g5.xlarge",
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceMarketOptions": {"MarketType": "spot"},
        "MetadataOptions": {"HttpTokens": "required"},
    }
    instance_id: str = launching.run_instances(region, params)["Instances"][0]["InstanceId"]
    return instance_id


@pytest.fixture
def metadata(server: Ec2Server, machine: str, monkeypatch: pytest.MonkeyPatch) -> Ec2Metadata:
    # No proxy listens on port 1: a request through a proxy would fail.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    return Ec2Metadata(server.metadata_url(machine))


@pytest.fixture
def notices(metadata: Ec2Metadata) -> Iterator[Ec2Notices]:
    source = Ec2Notices(metadata, look_seconds=0.01).start()
    yield source
    source.stop()


def test_metadata_requests_share_a_token(
    metadata: Ec2Metadata, region: Region, machine: str
) -> None:
    assert metadata.get("latest/meta-data/instance-id") == machine
    assert metadata.get("latest/meta-data/placement/availability-zone") == "us-east-1a"
    assert metadata.get(ACTION_PATH) is None
    assert len(region.metadata_tokens) == 1


def test_a_refused_token_is_replaced_at_the_next_request(
    metadata: Ec2Metadata, region: Region, machine: str
) -> None:
    metadata.get(ACTION_PATH)
    region.metadata_tokens.clear()
    with pytest.raises(MetadataUnavailable, match="401"):
        metadata.get(ACTION_PATH)
    assert metadata.get("latest/meta-data/instance-id") == machine


def test_error_of_a_missing_service_names_the_path() -> None:
    with pytest.raises(MetadataUnavailable, match=ACTION_PATH):
        Ec2Metadata("http://127.0.0.1:1").get(ACTION_PATH)


def test_an_interruption_is_a_notice_with_its_deadline(
    notices: Ec2Notices, region: Region, machine: str
) -> None:
    assert notices.poll() is None
    region.interrupt(machine)
    wait_until(notices.poll)
    text = "EC2 is reclaiming this spot instance (terminate)"
    assert notices.poll() == Notice(BEGAN_MS + 120_000, text)


def test_notice_source_ec2_reads_ec2_metadata(
    server: Ec2Server, region: Region, machine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.metadata_url(machine))
    region.interrupt(machine)
    source = notice_source("ec2", tmp_path)
    assert isinstance(source, Ec2Notices)
    wait_until(source.poll)
    source.stop()
    assert isinstance(notice_source("file", tmp_path), FileNotices)


def test_a_notice_survives_a_disabled_metadata_service(
    notices: Ec2Notices, region: Region, machine: str
) -> None:
    region.interrupt(machine)
    wait_until(notices.poll)
    region.machines[machine].data = {"MetadataOptions": {"HttpEndpoint": "disabled"}}
    # Several requests, all refused.
    time.sleep(0.05)
    assert notices.poll() is not None


def test_rebalance_advice_is_no_notice(notices: Ec2Notices, region: Region, machine: str) -> None:
    region.advise(machine)
    wait_until(lambda: notices.is_end_likely)
    assert notices.poll() is None


class _Saying:
    """Metadata service with the same text at every path."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get(self, path: str) -> str | None:
        return self._text


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"action": "stop", "time": 5}', '{"action": "stop", "time": "soon"}']
)
def test_an_unreadable_notice_gets_the_minimum_deadline(text: str) -> None:
    before_ms = time.time_ns() // 1_000_000
    notices = Ec2Notices(_Saying(text), look_seconds=0.01).start()
    wait_until(notices.poll)
    notices.stop()
    notice = notices.poll()
    assert notice is not None
    assert 0 <= notice.deadline_ms - before_ms - INTERRUPTION_MS < 60_000
