"""Termination notices that a Compute Engine instance reads from a simulated metadata server."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.agent.__main__ import notice_source
from detcloud.agent.gcp.end_notices import GceNotices
from detcloud.agent.gcp.metadata import GceMetadata, MetadataUnavailable
from detcloud.shared.notices import Notice
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.google_keys import GoogleKeys
from tests.patience import wait_until

PREEMPTED = "Compute Engine is preempting this spot instance"


@pytest.fixture
def machine() -> MachineMetadata:
    return MachineMetadata("detcloud-vision-1", GoogleKeys())


@pytest.fixture
def host(machine: MachineMetadata, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # No proxy listens on port 1: a request through a proxy would fail.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with metadata_server(machine) as address:
        yield address


@pytest.fixture
def notices(host: str) -> Iterator[GceNotices]:
    source = GceNotices(GceMetadata(host), retry_seconds=0.01).start()
    yield source
    source.stop()


def ends_within(notice: Notice, seconds: int, since_ms: int) -> bool:
    """Return whether the deadline is `seconds` after some moment between `since_ms` and now."""
    earliest, latest = (
        number + seconds * 1000 for number in (since_ms, time.time_ns() // 1_000_000)
    )
    return earliest <= notice.deadline_ms <= latest


def test_a_preemption_is_a_notice_of_thirty_seconds(
    notices: GceNotices, machine: MachineMetadata
) -> None:
    assert notices.poll() is None
    since_ms = time.time_ns() // 1_000_000
    machine.set_preempted()
    notice = wait_until(notices.poll)
    assert notice is not None
    assert notice.reason == PREEMPTED
    assert ends_within(notice, 30, since_ms)
    assert notices.poll() is notice
    assert not notices.is_end_likely


def test_notice_source_gce_uses_the_configured_notice_seconds(
    host: str, machine: MachineMetadata, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", host)
    monkeypatch.setenv("DETCLOUD_PREEMPTION_SECONDS", "120")
    since_ms = time.time_ns() // 1_000_000
    machine.set_preempted()
    source = notice_source("gce", tmp_path)
    assert isinstance(source, GceNotices)
    notice = wait_until(source.poll)
    source.stop()
    assert notice is not None
    assert ends_within(notice, 120, since_ms)


def test_wait_for_change_returns_at_a_change(host: str, machine: MachineMetadata) -> None:
    metadata = GceMetadata(host)
    first = metadata.wait_for_change("instance/preempted", "", 60)
    assert first.text == "FALSE"
    unchanged = metadata.wait_for_change("instance/preempted", first.etag, 1)
    assert unchanged == first
    machine.set_preempted()
    # A late request returns at once, since the tag has changed.
    changed = metadata.wait_for_change("instance/preempted", first.etag, 60)
    assert changed.text == "TRUE"


def test_terminating_maintenance_is_a_notice_and_migration_is_not(
    notices: GceNotices, machine: MachineMetadata
) -> None:
    since_ms = time.time_ns() // 1_000_000
    machine.set_maintenance_event("TERMINATE_ON_HOST_MAINTENANCE")
    notice = wait_until(notices.poll)
    assert notice is not None
    assert notice.reason == "Compute Engine stops this instance for maintenance of its host"
    assert ends_within(notice, 60, since_ms)
    machine.set_maintenance_event("MIGRATE_ON_HOST_MAINTENANCE")
    wait_until(lambda: notices.poll() is None)


def test_the_earlier_of_two_notices_wins(notices: GceNotices, machine: MachineMetadata) -> None:
    machine.set_maintenance_event("TERMINATE_ON_HOST_MAINTENANCE")
    wait_until(notices.poll)
    machine.set_preempted()
    # The preemption ends the instance in 30 seconds, the maintenance in 60.
    wait_until(lambda: (notice := notices.poll()) is not None and notice.reason == PREEMPTED)


def test_a_notice_survives_outages_of_the_metadata_server(
    notices: GceNotices, machine: MachineMetadata
) -> None:
    machine.set_down(True)
    machine.set_preempted()
    assert notices.poll() is None
    machine.set_down(False)
    wait_until(notices.poll)
    machine.set_down(True)
    assert notices.poll() is not None


def test_missing_metadata_server_and_missing_values_are_errors(host: str) -> None:
    with pytest.raises(MetadataUnavailable, match="instance/name"):
        GceMetadata("127.0.0.1:1").get("instance/name")
    assert GceMetadata(host).get("instance/nothing") is None
    with pytest.raises(OSError, match="have no instance/nothing"):
        GceMetadata(host).require("instance/nothing")
