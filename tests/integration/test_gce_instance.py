"""The reach of user code on a Compute Engine instance, on real networks with the boot script's
rules.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lambdas.gcp.boot import startup_script
from tests.emulators.instance import (
    AGENT_UID,
    GOOGLE_METADATA,
    GOOGLE_NAME_SERVER,
    INSTANCE_ID,
    TRIAL_UID,
    Instance,
    boot_script,
    instance,
)

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with instance(tmp_path_factory.mktemp("gce"), boot_script(startup_script)) as made:
        # Without the firewall all addresses are reachable; otherwise the tests below would prove
        # nothing.
        reached = [made.fetch(url, TRIAL_UID) for url in GOOGLE_METADATA]
        reached += [made.fetch(url, place="guest") for url in GOOGLE_METADATA]
        assert reached == [INSTANCE_ID] * 4
        made.start("detcloud-firewall")
        yield made


@pytest.mark.parametrize("url", GOOGLE_METADATA)
def test_only_the_agent_reaches_the_metadata_of_google(machine: Instance, url: str) -> None:
    reached = [machine.fetch(url, uid) for uid in (AGENT_UID, TRIAL_UID, 0)]
    assert reached == [INSTANCE_ID, "nothing", "nothing"]
    assert machine.fetch(url, place="guest") == "nothing"


@pytest.mark.parametrize("url", GOOGLE_NAME_SERVER)
def test_every_user_reaches_the_name_server_at_the_metadata_address(
    machine: Instance, url: str
) -> None:
    assert [machine.fetch(url, uid) for uid in (AGENT_UID, TRIAL_UID, 0)] == [INSTANCE_ID] * 3
    assert machine.fetch(url, place="guest") == INSTANCE_ID
