"""The agent user of a trial's spec, and the machine's facts about the user."""

import os
import pwd
import stat
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.agent_user import (
    AgentUser,
    AgentUserUnavailable,
    check_agent_user,
    find_machine_user,
    only_user,
    read_agent_user,
    set_agent_user,
)
from detcloud.agent.assignment.assignment import Assignment
from detcloud.agent.assignment.checkpoint_folder import (
    find_written_folder,
    prepare_checkpoint_folder,
)
from detcloud.agent.package_cache import owner_folder

ADA = {"uid": 70_001, "gid": 70_002, "user": "", "group": ""}
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


def assignment(work: Path, **spec: Any) -> Assignment:
    directory = AllocationDirectory(work / "allocations", "4.1", (70_001, 70_002))
    return Assignment(directory, {"experiment_id": 7, "trial_id": 4, **spec}, [], 1, 100)


def test_spec_without_a_user_has_none() -> None:
    assert read_agent_user({}) is None


@pytest.mark.parametrize(
    "fields",
    [
        "ada",
        [],
        {},
        {"uid": 5},
        {"uid": "5", "gid": 5},
        {"uid": True, "gid": 5},
        {"uid": -1, "gid": 5},
        {"uid": 5, "gid": 2**32 - 1},
        {"uid": 5.0, "gid": 5},
    ],
)
def test_malformed_user_is_an_error(fields: Any) -> None:
    with pytest.raises(ValueError, match="agent_user"):
        read_agent_user({"agent_user": fields})


def test_refusal_of_the_cluster_ends_the_start() -> None:
    with pytest.raises(AgentUserUnavailable, match="not allowed"):
        check_agent_user(AgentUser(5, 5, refusal="root is not allowed"))


def test_agent_without_root_refuses_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1000)
    check_agent_user(AgentUser(1000, 1000))
    for other in (AgentUser(1001, 1000), AgentUser(1000, 1001), AgentUser(0, 0)):
        with pytest.raises(AgentUserUnavailable, match="run the agent as root"):
            check_agent_user(other)


def test_user_without_an_entry_has_one_group() -> None:
    user = find_machine_user(AgentUser(70_001, 70_002, "nobody-knows-ada"))
    assert (user.groups, user.name) == ((70_002,), "nobody-knows-ada")


def test_user_has_the_groups_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.getpwuid(0)
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, 44, len(name)])
    user = find_machine_user(AgentUser(0, 7))
    assert (user.groups, user.name) == ((7, 44, len(entry.pw_name)), entry.pw_name)


def test_number_with_another_name_is_refused() -> None:
    with pytest.raises(AgentUserUnavailable, match="uid 0 is root on this machine"):
        find_machine_user(AgentUser(0, 0, "ada"))


def test_name_with_another_number_is_refused() -> None:
    with pytest.raises(AgentUserUnavailable, match="root has the number 0"):
        find_machine_user(AgentUser(70_001, 70_001, "root"))


@NEEDS_ROOT
def test_owner_of_files_is_recorded(tmp_path: Path) -> None:
    directory = AllocationDirectory(tmp_path / "allocations", "4.1")
    directory.create()
    set_agent_user(directory, {"agent_user": ADA})
    directory.write_spec({})
    assert (directory.inputs / "spec.json").stat().st_uid == ADA["uid"]
    assert stat.S_IMODE((directory.agent / "owner.json").stat().st_mode) == 0o600


def test_damaged_record_of_the_owner_is_an_error(tmp_path: Path) -> None:
    directory = AllocationDirectory(tmp_path / "allocations", "4.1")
    directory.create()
    (directory.agent / "owner.json").write_text("[1]")
    with pytest.raises(ValueError, match="unpack"):
        directory.restore_owner()


def test_each_agent_user_of_an_owner_has_caches_of_its_own(tmp_path: Path) -> None:
    specs: list[dict[str, Any]] = [{"owner": "ada"}]
    specs += [{"owner": "ada", "agent_user": ADA | {"uid": uid}} for uid in (5, 6)]
    specs += [{"owner": "bob", "agent_user": ADA | {"uid": 5}}]
    assert len({owner_folder(tmp_path, spec) for spec in specs}) == 4


@NEEDS_ROOT
def test_clusters_folder_of_checkpoints_is_opened(tmp_path: Path) -> None:
    trial = assignment(tmp_path / "work", agent_user=ADA)
    prepare_checkpoint_folder(tmp_path, trial)
    own = (tmp_path / "7/4").stat()
    assert (own.st_uid, own.st_gid) == (ADA["uid"], ADA["gid"])
    for shared in (".staging", "tensorboard"):
        status = (tmp_path / shared).stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o1777)
    assert find_written_folder(tmp_path, trial) == tmp_path / "7/4"


@NEEDS_ROOT
def test_folder_of_an_experiment_is_never_opened(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    config = {"checkpoint_storage": {"type": "shared_fs", "host_path": str(tmp_path)}}
    prepare_checkpoint_folder(tmp_path, assignment(tmp_path, agent_user=ADA, config=config))
    assert list(tmp_path.iterdir()) == []
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_agent_without_root_reports_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.getegid", lambda: 1001)
    assert only_user() == "1000:1001"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert only_user() == ""
