"""The check of remote accounts that a stack's settings no longer have."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

require("pulumi_aws")

from infra.aws.program import PROGRAM  # noqa: E402
from infra.dropped_accounts import check_dropped_accounts  # noqa: E402
from infra.remote_accounts import Launcher  # noqa: E402
from infra.remote_settings import list_dropped_accounts  # noqa: E402
from infra.stack_program import DrainFailed, DroppedAccount  # noqa: E402

BEFORE = '{"gcp": {}}'


def look(folder: Path, *instances: str) -> list[str]:
    left = ("the network detcloud-vision-network in the project acme-ml",)
    remote = DroppedAccount("gcp", "the project acme-ml", instances, left, "#!/bin/bash\n")
    program = replace(PROGRAM, find_dropped_accounts=lambda *_: [remote])
    return check_dropped_accounts(program, "vision", {}, BEFORE, folder / "Pulumi.vision.yaml")


def test_refuses_to_drop_an_account_with_running_instances(tmp_path: Path) -> None:
    with pytest.raises(DrainFailed, match="no longer has the project acme-ml") as refused:
        look(tmp_path, "vm-1", "vm-2")
    assert "instances in that account: vm-1, vm-2. Restore the setting" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_removal_script_is_written_to_the_settings_folder(tmp_path: Path) -> None:
    lines = look(tmp_path)
    script = tmp_path / "remove-gcp-of-vision.sh"
    assert script.read_text() == "#!/bin/bash\n"
    assert lines == [
        "detcloud:otherClouds: not deleted: the network detcloud-vision-network in the project "
        "acme-ml",
        f"`bash {script}` removes these resources, with credentials of the project acme-ml",
    ]


def test_refuses_to_drop_an_account_that_cannot_be_read(tmp_path: Path) -> None:
    def refuse(*_: object) -> list[DroppedAccount]:
        raise DrainFailed("instances in acme-ml may be left: sign in")

    program = replace(PROGRAM, find_dropped_accounts=refuse)
    with pytest.raises(
        DrainFailed, match="no longer has a remote account that was deployed, and instances"
    ):
        check_dropped_accounts(program, "vision", {}, BEFORE, tmp_path / "Pulumi.vision.yaml")


class Account:
    """A remote account at a place, with an instance and a network."""

    def __init__(self, place: str) -> None:
        self.place = place

    def list_instances(self) -> list[str]:
        return ["vm-1"]

    def find_leftovers(self) -> list[str]:
        return [f"the instance vm-1 in {self.place}", f"the network in {self.place}"]

    def removal_commands(self) -> str:
        return "#!/bin/bash\n"


def open_accounts(given: Mapping[str, Any], launcher: Launcher) -> dict[str, Any]:
    return {cloud: Account(value["project"]) for cloud, value in given.items()}


def test_account_is_dropped_if_the_setting_lacks_the_place() -> None:
    launcher = Launcher("aws", "111111111111", "vision", "detcloud-vision-tick")
    before = '{"gcp": {"project": "acme-ml"}}'
    # A remote account is identified by the project, not by the region.
    same: Any = {"gcp": Account("acme-ml")}
    assert list_dropped_accounts(before, "aws", launcher, same, open_accounts) == []
    left = ("the instance vm-1 in acme-ml", "the network in acme-ml")
    expected = [DroppedAccount("gcp", "acme-ml", ("vm-1",), left, "#!/bin/bash\n")]
    others: list[Any] = [{}, {"gcp": Account("acme-new")}]
    for present in others:
        found = list_dropped_accounts(before, "aws", launcher, present, open_accounts)
        assert found == expected


@pytest.mark.parametrize("before", ["no JSON", '{"gcp": {"projekt": "acme-ml"}}', '{"aws": {}}'])
def test_unreadable_deployed_setting_is_an_error(before: str) -> None:
    launcher = Launcher("aws", "111111111111", "vision", "detcloud-vision-tick")
    with pytest.raises(DrainFailed, match="cannot read the deployed setting: expected "):
        list_dropped_accounts(before, "aws", launcher, {})
