"""Faults of networks, credentials and disks at drawn moments of storing checkpoints."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from detcloud.agent.issued_keys import StorageToken
from detcloud.agent.storage_credentials import CredentialServer
from tests.conformance.checkpoint_faults import (
    PART_WRITE,
    WRITES_MAX,
    CheckpointFaults,
    SmallDisk,
    small_disk,
)
from tests.conformance.kill_phases import LARGE_BYTES
from tests.conformance.stores_under_test import open_folder, open_store
from tests.emulators.faulty_front import Fault, FaultyFront, faulty_front

FAULTS = int(os.environ.get("CHECKPOINT_FAULTS", "30"))
SEED = int(os.environ.get("CHECKPOINT_FAULTS_SEED", "1"))
KEPT = r"was not stored: .*; the previous checkpoint is still the latest"
# The advice in error messages.
REMEDIES = {
    Fault.SILENCE: "check the network",
    Fault.EXPIRY: "renew",
    Fault.NO_ROOM: "make room",
}
NO_SPACE = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        yield made


def check_front_faults(
    folder: Path, request: pytest.FixtureRequest, name: str, fault: Fault, writes: list[int]
) -> None:
    """Meet the fault at each of `writes`, the numbers of writes within a checkpoint."""
    store = open_store(name, folder / "store", request)
    with faulty_front(store.url) as front, tokens_of_agent(folder, name) as tokens:
        faults = CheckpointFaults(folder, **store.parts)
        storage, environment = store.behind(front.url)
        for write in writes:
            check_front_fault(faults, front, fault, write, storage, {**environment, **tokens})


@contextmanager
def tokens_of_agent(folder: Path, name: str) -> Iterator[dict[str, str]]:
    """Yield the variables by which a trial gets tokens for Google's clients; {} for other stores.

    Google's clients start without a token, and request a new token after a refusal; other clients
    have keys.
    """
    if name != "gcs":
        yield {}
        return

    def issue_token(allocation: str) -> StorageToken:
        return StorageToken("token", int(time.time() * 1000) + 3_600_000)

    server = CredentialServer(folder, issue_token, print)
    try:
        yield server.variables("1.1", google=True)
    finally:
        server.close()


def check_front_fault(
    faults: CheckpointFaults,
    front: FaultyFront,
    fault: Fault,
    write: int,
    storage: dict[str, str],
    environment: dict[str, str],
) -> None:
    error = faults.run(partial(front.break_at, fault, write), front.mend, storage, environment)
    assert re.search(KEPT, error), (write, error)
    assert REMEDIES[fault] in error, (write, error)


def check_full_store(folder: Path, disk: SmallDisk, rooms: list[int]) -> None:
    """Run the faults with each of `rooms` as the free bytes of the store's disk."""
    faults = CheckpointFaults(folder, **open_folder(disk.place / "store", "directory").parts)
    for room in rooms:
        error = faults.run(partial(disk.fill, room), disk.make_room)
        assert re.search(f"{NO_SPACE}.*make room", error), (room, error)
        assert re.search(KEPT, error), (room, error)


def check_full_machine(
    folder: Path, disk: SmallDisk, request: pytest.FixtureRequest, name: str, rooms: list[int]
) -> None:
    """Run the faults with each of `rooms` as the free bytes of the trial's disk."""
    store = open_store(name, folder / "store", request)
    faults = CheckpointFaults(folder, **store.parts)
    for room in rooms:
        fill = partial(disk.fill, room)
        error = faults.run(fill, disk.make_room, environment=disk.environment())
        assert NO_SPACE in error, (room, error)


def drawn_writes(count: int) -> list[int]:
    return [Random(SEED + number).randrange(WRITES_MAX) for number in range(count)]


def drawn_rooms(count: int) -> list[int]:
    # A checkpoint is slightly larger than its large file.
    return [Random(SEED + number).randrange(LARGE_BYTES) for number in range(count)]


@pytest.mark.parametrize("fault", [Fault.SILENCE, Fault.EXPIRY])
def test_fault_on_the_way_to_s3_leaves_no_half_checkpoint(
    tmp_path: Path, request: pytest.FixtureRequest, fault: Fault
) -> None:
    check_front_faults(tmp_path, request, "s3", fault, [PART_WRITE])


@pytest.mark.parametrize(
    "name", ["s3", *(pytest.param(word, marks=pytest.mark.nightly) for word in ("gcs", "azure"))]
)
def test_trial_abandons_an_upload_that_takes_longer_than_the_notice(
    tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    store = open_store(name, tmp_path / "store", request)
    with faulty_front(store.url) as front:
        faults = CheckpointFaults(tmp_path, **store.parts)
        left = faults.leave_at_notice(front, *store.behind(front.url))
    assert (left["kind"], left["notice_outcome"]) == ("exit", "kept")


def test_full_disk_of_a_store_leaves_no_half_checkpoint(tmp_path: Path, disk: SmallDisk) -> None:
    # No room for the small files, and then no room for the large file.
    check_full_store(tmp_path, disk, [10_000, LARGE_BYTES // 2])


# Only services with S3's protocol can be full.
WAYS = [
    (name, fault)
    for name in ("s3", "gcs", "azure")
    for fault in Fault
    if name == "s3" or fault is not Fault.NO_ROOM
]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "fault"), WAYS)
def test_faults_at_drawn_writes_leave_no_half_checkpoint(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, fault: Fault
) -> None:
    check_front_faults(tmp_path, request, name, fault, drawn_writes(FAULTS))


@pytest.mark.nightly
def test_full_disks_at_drawn_writes_leave_no_half_checkpoint(
    tmp_path: Path, disk: SmallDisk
) -> None:
    check_full_store(tmp_path, disk, drawn_rooms(FAULTS))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["directory", "s3"])
def test_full_machines_at_drawn_writes_leave_no_half_checkpoint(
    tmp_path: Path, disk: SmallDisk, request: pytest.FixtureRequest, name: str
) -> None:
    check_full_machine(tmp_path, disk, request, name, drawn_rooms(FAULTS))
