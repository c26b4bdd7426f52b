"""The reach of user code on a Compute Engine instance, on real networks with the boot script's
rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

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
from tests.emulators.server import missing

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


# The file by which the boot script recognizes version 2 of control groups.
CONTROLLERS = "/sys/fs/cgroup/cgroup.controllers"


def group_root() -> Path:
    """Return where version 2 of control groups is mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    return missing("cgroup2", "this machine has no version 2 of control groups")


@pytest.fixture(scope="module")
def make_group() -> Iterator[Callable[[str], Path]]:
    """Yield a function that makes a control group below the root and returns its folder."""
    with ExitStack() as cleanup:

        def make(name: str) -> Path:
            folder = group_root() / name
            for part in reversed([folder, *folder.parents]):
                if not part.exists():
                    part.mkdir()
                    cleanup.callback(part.rmdir)
            return folder

        yield make


@pytest.fixture(scope="module")
def machine_with_groups(
    tmp_path_factory: pytest.TempPathFactory, make_group: Callable[[str], Path]
) -> Iterator[Instance]:
    """Yield an instance with version 2 of control groups, as Google's images have."""
    make_group(f"system.slice/service-{os.getpid()}")
    # The build machine mounts version 2 beside version 1.
    script = boot_script(startup_script).replace(
        CONTROLLERS, str(group_root() / "cgroup.controllers")
    )
    with instance(tmp_path_factory.mktemp("gce-groups"), script) as made:
        made.start("detcloud-firewall")
        yield made


@pytest.mark.parametrize("url", GOOGLE_METADATA)
def test_only_system_services_of_root_reach_the_metadata(
    machine_with_groups: Instance, make_group: Callable[[str], Path], url: str
) -> None:
    """OS Login and the Ops Agent are services; containers are in a group of their own."""
    machine = machine_with_groups
    service = make_group(f"system.slice/service-{os.getpid()}")
    containers = [
        make_group(f"detcloud.slice/detcloud-trials.slice/docker-{os.getpid()}"),
        make_group(f"detcloud-trials/{os.getpid()}"),
        make_group(f"user.slice/{os.getpid()}"),
    ]
    assert machine.fetch(url, 0, group=service) == INSTANCE_ID
    assert machine.fetch(url, AGENT_UID) == INSTANCE_ID
    # A service of another user is none of Google's.
    assert machine.fetch(url, TRIAL_UID, group=service) == "nothing"
    assert [machine.fetch(url, 0, group=group) for group in containers] == ["nothing"] * 3
    assert machine.fetch(url, 0) == "nothing"
