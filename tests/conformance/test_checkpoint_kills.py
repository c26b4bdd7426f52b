"""Kills at drawn moments of storing and deleting checkpoints, on each store."""

import os
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import urllib3

from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.gcp.firestore_client import authorize_owner
from control_plane.gcp.state_table import FirestoreTable
from control_plane.state.table import StateTable
from tests.conformance.checkpoint_kills import CheckpointKills
from tests.conformance.kill_phases import COLLECTOR_PHASES, PHASES, KillCounts
from tests.conformance.stores_under_test import STORES, StoreUnderTest, open_folder, open_store
from tests.emulators.firestore import PROJECT, Firestore, IndexedClient
from tests.emulators.ministack import Ministack
from tests.patience import ANSWER_SECONDS_MAX

KILLS_IN_SHORT = 30
KILLS = int(os.environ.get("CHECKPOINT_KILLS", "1000"))
SEED = int(os.environ.get("CHECKPOINT_KILLS_SEED", "1"))
# Each of the eight phases is drawn in 10 % of the kills or more, and a kill may come a phase late.
SHARE_MIN = 0.05
# Of the kills of collectors, for either of the two phases.
SHARE_OF_COLLECTORS_MIN = 0.2


def kills_in(folder: Path, store: StoreUnderTest, **more: Any) -> CheckpointKills:
    return CheckpointKills(folder, **store.parts, random=Random(SEED), **more)


def kills_in_directory(folder: Path, **more: Any) -> CheckpointKills:
    return kills_in(folder, open_folder(folder / "store", "directory"), **more)


def run_kills(
    proof: CheckpointKills, kills: int = KILLS, share_min: float = SHARE_MIN
) -> KillCounts:
    """Kill `kills` processes, in all phases; print and return the counts."""
    try:
        proof.run(kills)
    finally:
        print(f"\nseed {SEED}: {proof.counts}", flush=True)
    proof.counts.check_spread(PHASES, share_min)
    return proof.counts


def test_kills_lose_no_checkpoint_in_a_directory(tmp_path: Path) -> None:
    proof = kills_in_directory(tmp_path)
    # One kill of each phase; four phases are drawn.
    assert run_kills(proof, KILLS_IN_SHORT, 1 / KILLS_IN_SHORT / 2).checkpoints


def open_dynamodb(account: Ministack, name: str) -> StateTable:
    return DynamoDbTable(account.client("dynamodb"), name)


@pytest.mark.nightly
def test_kills_lose_no_record_in_dynamodb(tmp_path: Path, aws: Ministack) -> None:
    name = f"table-{uuid.uuid4().hex}"
    aws.client("dynamodb").create_table(**table_definition(name))
    open_table: Callable[[], StateTable] = partial(open_dynamodb, aws, name)
    counts = run_kills(kills_in_directory(tmp_path, open_table=open_table))
    assert min(counts.incomplete, counts.checkpoints) > 0


# A process takes seconds to start there: fewer kills take as long as many elsewhere.
def open_firestore(url: str, database: str) -> StateTable:
    # A killed process leaves its connections behind, so that each process needs new connections.
    pool = urllib3.PoolManager(retries=False, timeout=ANSWER_SECONDS_MAX)
    return FirestoreTable(IndexedClient(pool, PROJECT, database, authorize_owner, url))


@pytest.mark.nightly
def test_kills_lose_no_record_in_firestore(tmp_path: Path, firestore: Firestore) -> None:
    place = (firestore.url, firestore.new_database())
    open_table: Callable[[], StateTable] = partial(open_firestore, *place)
    counts = run_kills(kills_in_directory(tmp_path, open_table=open_table), KILLS // 5)
    assert min(counts.incomplete, counts.checkpoints) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("store", STORES)
def test_many_kills_lose_no_checkpoint(
    tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    assert run_kills(kills_in(tmp_path, open_store(store, tmp_path / "store", request))).incomplete


@pytest.mark.nightly
@pytest.mark.parametrize("store", STORES)
def test_many_kills_of_collectors_lose_no_checkpoint(
    tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    proof = kills_in(tmp_path, open_store(store, tmp_path / "store", request))
    try:
        proof.run_collections(KILLS)
    finally:
        print(f"\nseed {SEED}: {proof.counts}", flush=True)
    assert proof.counts.checkpoints
    proof.counts.check_spread(COLLECTOR_PHASES, SHARE_OF_COLLECTORS_MIN)
