"""A team's stack on the emulators of Google Cloud: its functions take what it gives them."""

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from detcloud.client import Client
from tests.conftest import require
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import PROJECT, Firestore
from tests.patience import ANSWER_SECONDS_MAX, wait_until

TOKEN = "dct_of-the-administrator"
POOLS = """
resource_manager: {default_compute_resource_pool: desk, default_aux_resource_pool: desk}
resource_pools:
  - pool_name: desk
"""


@dataclass(frozen=True)
class Stack:
    """A stack whose API and tick run."""

    url: str
    minute: int
    noted: frozenset[str]
    objects: list[str]


@pytest.fixture(scope="module")
def stack(
    firestore: Firestore, gcs_server: FakeGcs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """The stack of a team, of which the first minute has gone by."""
    for package in ("pulumi_gcp", "cryptography"):
        require(package)
    from hashlib import sha256

    from infra.gcp.program import make_stack
    from tests.emulators.materialise_gcp import GcpEmulatorMaker, materialise_gcp, run_functions
    from tests.unit.infra.gcp_graphs import gcp_files

    folder, maker = tmp_path_factory.mktemp("stack"), GcpEmulatorMaker(gcs_server)
    config = {
        "detcloud:project": PROJECT + "-1",
        "detcloud:projectNumber": "123456789012",
        "detcloud:region": "us-central1",
        "detcloud:adminSha256": sha256(TOKEN.encode()).hexdigest(),
        **gcp_files(folder / "given", POOLS),
    }
    outputs = materialise_gcp(lambda: make_stack(lambda build: None), "made", config, maker)
    unused = {f"detcloud-made-{it}" for it in ("advance", "checkpoint-gc", "suggest")}
    with run_functions(maker, firestore, folder, frozenset(unused)) as running:
        status = running.call_minute()
        listing = f"{gcs_server.url}/storage/v1/b/{outputs['objects']}/o"
        with urllib.request.urlopen(listing, timeout=ANSWER_SECONDS_MAX) as answer:
            objects = [it["name"] for it in json.load(answer)["items"]]
        url = running.urls["detcloud-made-api"]
        yield Stack(url, status, frozenset(maker.noted), objects)


def test_the_first_minute_puts_the_configuration_in_force(stack: Stack) -> None:
    assert stack.minute in (200, 204)
    with Client(stack.url, TOKEN) as client:

        def has_pool() -> bool:
            return [it.name for it in client.resource_pools()] == ["desk"]

        wait_until(has_pool, ANSWER_SECONDS_MAX, "the deployed pool")


def test_the_bucket_has_the_configuration_and_the_sources(stack: Stack) -> None:
    folders = {name.partition("/")[0] for name in stack.objects}
    assert {"config", "function-sources"} <= folders


def test_parts_that_no_emulator_has_are_noted(stack: Stack) -> None:
    assert {"compute/network", "projects/iAMMember", "firestore/index"} <= stack.noted
