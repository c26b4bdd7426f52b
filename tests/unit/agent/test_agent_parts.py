"""The agent's small pure parts: environment, slots, logs, exits, notices, directories."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from detcloud.agent.address import own_address
from detcloud.agent.allocation import Allocation
from detcloud.agent.directory import AllocationDirectory, delete_tree, read_object
from detcloud.agent.environment import (
    by_name,
    configured_variables,
    gang_variables,
    shared_environment,
    trial_environment,
)
from detcloud.agent.exits import exited_record
from detcloud.agent.logs import (
    MARKS_MAX,
    MARKS_SENT_MAX,
    LogMarks,
    decoded,
    log_tail,
    read_log,
    whole_lines,
)
from detcloud.agent.model_code import ARCHIVES_KEPT, CodeCache, CodeReference, CodeUnavailable
from detcloud.agent.notices import FileNotices, Notice, with_notice
from detcloud.agent.own_report import OwnReport
from detcloud.agent.runtime import Phase, ProcessRuntime, Status
from detcloud.agent.slots import (
    Slot,
    SlotsUnknown,
    cores,
    cpu_slots,
    discover_slots,
    nvidia_slots,
    parse_nvidia,
)
from tests.integration.agent_cluster import tar


@pytest.fixture
def directory(tmp_path: Path) -> AllocationDirectory:
    made = AllocationDirectory(tmp_path / "allocations", "4.1")
    made.create()
    return made


def test_the_environment_is_an_allow_list(directory: AllocationDirectory) -> None:
    own = {"PATH": "/bin", "LANG": "C.UTF-8", "AWS_SECRET_ACCESS_KEY": "s", "TOKEN": "t"}
    gpu = Slot(1, "cuda", "GPU-b", "H100")
    environment = trial_environment(shared_environment(own, 4), {}, directory, [gpu], ours={})
    assert not {"AWS_SECRET_ACCESS_KEY", "TOKEN"} & set(environment)
    assert environment["PATH"].endswith(":/bin")
    assert environment["LANG"] == "C.UTF-8"
    assert environment["PYTHONHASHSEED"] == "0"
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "4"


def test_the_configuration_may_set_variables_but_not_the_trials_place(
    directory: AllocationDirectory,
) -> None:
    variables = ["PYTHONPATH=/lib", "HOME=/root", "OMP_NUM_THREADS=1", "DETCLOUD_TRIAL_DIR=/x"]
    environment = trial_environment(shared_environment({}, 4), variables, directory, [], ours={})
    assert environment["PYTHONPATH"].endswith(":/lib")
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HOME"] == str(directory.home)
    assert environment["DETCLOUD_TRIAL_DIR"] == str(directory.path)


def test_a_temporary_folder_too_deep_for_sockets_is_the_machines() -> None:
    # What is appended to the root: "/4.1/home/tmp", 13 bytes.
    for length, is_own in ((57, True), (58, False)):
        root = Path("/" + "d" * (length - 1))
        environment = trial_environment(
            shared_environment({}, 1), {}, AllocationDirectory(root, "4.1"), [], ours={}
        )
        own = f"{root}/4.1/home/tmp"
        assert environment["TMPDIR"] == (own if is_own else tempfile.gettempdir())


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (["A=1", "B=x=y", "C", "=z"], {"A": "1", "B": "x=y", "C": ""}),
        ({"A": 1}, {"A": "1"}),
        ({"cpu": ["A=1"], "gpu": ["A=2"]}, {"A": "2"}),
        ({"cpu": {"A": "1"}, "cuda": {"A": "2"}, "gpu": None}, {"A": "2"}),
        (None, {}),
        ("A=1", {}),
    ],
)
def test_variables_are_read_in_every_form(variables: object, expected: dict[str, str]) -> None:
    config = {"environment": {"environment_variables": variables}}
    assert by_name(configured_variables(config), cuda=True) == expected


def test_nvidia_devices_become_slots() -> None:
    listing = "0, GPU-a, NVIDIA H100 80GB HBM3\n1, GPU-b, NVIDIA H100 80GB HBM3\n"
    assert parse_nvidia(listing)[1] == Slot(1, "cuda", "GPU-b", "NVIDIA H100 80GB HBM3")
    with pytest.raises(SlotsUnknown, match="No devices"):
        parse_nvidia("No devices were found")


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a machine's nvidia-smi do what a shell is told."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def does(script: str) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    return does


FAILS = "echo NVIDIA-SMI has failed; exit 9"


@pytest.mark.parametrize("script", [FAILS, "echo No devices were found"])
def test_an_image_for_gpus_on_a_machine_without_has_none(
    script: str, nvidia_smi: Callable[[str], None], tmp_path: Path
) -> None:
    nvidia_smi(script)
    device = tmp_path / "sys/bus/pci/devices/0000:00:03.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1d0f\n")
    assert nvidia_slots(tmp_path) == []


@pytest.mark.parametrize("place", ["sys/bus/pci/devices/0000:00:1e.0/vendor", "dev/nvidia0"])
def test_a_gpu_that_cannot_be_asked_is_no_cpu(
    place: str, nvidia_smi: Callable[[str], None], tmp_path: Path
) -> None:
    nvidia_smi(FAILS)
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("0x10de\n")
    with pytest.raises(SlotsUnknown, match="NVIDIA-SMI has failed"):
        nvidia_slots(tmp_path)


@pytest.mark.parametrize(
    ("listed", "count", "without_gpus", "found"),
    [
        ("", None, None, ["cpu"] * cores()),
        ("", None, 1, ["cpu"]),
        ("", None, 0, []),
        ("0, GPU-a, H100", None, 0, ["cuda"]),
        ("0, GPU-a, H100", 2, 0, ["cpu", "cpu"]),
    ],
)
def test_cpu_slots_are_for_machines_without_gpus_unless_they_are_asked_for(
    listed: str,
    count: int | None,
    without_gpus: int | None,
    found: list[str],
    nvidia_smi: Callable[[str], None],
) -> None:
    nvidia_smi(f"echo '{listed}'")
    assert [slot.type for slot in discover_slots(count, without_gpus)] == found


def test_an_agent_may_have_no_slots() -> None:
    assert cpu_slots(0) == []


def test_decoded_text_has_as_many_bytes_as_it_stands_for() -> None:
    raw = b"ok \xff\xc3\xa9 \xe2\x82"
    assert decoded(raw) == "ok ?é ??"
    assert len(decoded(raw).encode()) == len(raw)


def test_a_character_cut_by_the_end_waits_for_its_rest(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes("ab€".encode()[:-1])
    assert read_log(log, 0, 100, ended=False) == "ab"
    assert read_log(log, 0, 100, ended=True) == "ab??"
    log.write_bytes("ab€".encode())
    assert read_log(log, 0, 100, ended=False) == "ab€"
    assert read_log(log, 0, 4, ended=True) == "ab"


def test_the_tail_has_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{n}\n" for n in range(100)))
    assert log_tail(log, 3) == "97\n98\n99"


@pytest.mark.parametrize(
    ("status", "exits", "reason"),
    [
        (Status(Phase.ENDED, "trial", 0), [{"reason": "completed"}], "completed"),
        (Status(Phase.ENDED, "trial", 0), [], "errored"),
        (Status(Phase.ENDED, "trial", 1), [{"reason": "idle"}], "idle"),
        (Status(Phase.ENDED, "trial", None, 9, killed=True), [], "killed"),
        (Status(Phase.ENDED, "trial", 1, killed=True), [{"reason": "errored"}], "killed"),
        (Status(Phase.ENDED, "trial", 0, killed=True), [{"reason": "preempted"}], "preempted"),
        (Status(Phase.ENDED, lost=True), [], "lost"),
        (
            Status(Phase.ENDED, "trial", 1),
            [{"reason": "preempted"}, {"reason": "errored"}],
            "errored",
        ),
    ],
)
def test_the_reason_of_an_exit(status: Status, exits: list[dict[str, Any]], reason: str) -> None:
    assert exited_record(status, exits, "", revision=3)["reason"] == reason


def test_a_command_that_fails_without_a_word_is_known_by_the_end_of_its_log() -> None:
    status = Status(Phase.ENDED, "trial", code=2)
    record = exited_record(status, [{"reason": "errored"}], "no such data\n", revision=3)
    assert record["message"] == (
        "the trial's process ended with exit code 2; the end of its log:\nno such data\n"
    )
    said = exited_record(Status(Phase.ENDED, "trial", code=0), [], "", revision=3)["message"]
    assert (
        said == "the trial's process ended with exit code 0 and reported no exit; its log is empty"
    )


def test_how_a_run_began_is_no_word_of_its_end() -> None:
    began = "[detcloud] run 2 of trial 4, from the beginning\n"
    status = Status(Phase.ENDED, "trial", code=3)
    message = exited_record(status, [], began, revision=3)["message"]
    assert message == "the trial's process ended with exit code 3; its log is empty"
    message = exited_record(status, [], f"{began}no data\n", revision=3)["message"]
    assert message == "the trial's process ended with exit code 3; the end of its log:\nno data\n"


def test_a_signal_is_named_that_a_shell_tells_as_a_code() -> None:
    # 137 = 128 + 9, of which a shell makes an exit code.
    message = exited_record(Status(Phase.ENDED, "trial", code=137), [], "", revision=3)["message"]
    said = "ended with exit code 137, that is SIGKILL (out of memory?); its log is empty"
    assert message == f"the trial's process {said}"


def test_a_failure_without_words_quotes_signal_and_log() -> None:
    status = Status(Phase.ENDED, "trial", None, signal.SIGKILL)
    record = exited_record(status, [], "last words", revision=3)
    assert record["message"].startswith("the trial's process was ended by SIGKILL (out of memory?)")
    assert record["message"].endswith("last words")
    assert record["directive_revision"] == 3


def test_an_exit_that_a_trial_words_oddly_can_still_be_sent() -> None:
    status = Status(Phase.ENDED, "trial", 1)
    said = {"reason": ["x"], "directive_revision": 10**400, "message": "no file a\udcff"}
    record = exited_record(status, [said], "", revision=3)
    assert (record["reason"], record["message"]) == ("errored", "no file a?")
    assert record["directive_revision"] == 3
    assert json.dumps(record, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        (None, 2000),
        ({"deadline_ms": None, "reason": "priority"}, 2000),
        ({"deadline_ms": 1000, "reason": "drain"}, 1000),
        ({"deadline_ms": 3000, "reason": "drain"}, 2000),
    ],
)
def test_the_earlier_deadline_counts(clusters: dict[str, Any] | None, expected: int) -> None:
    merged = with_notice({"revision": 4, "preempt": clusters}, Notice(2000, "spot"))
    assert merged["preempt"]["deadline_ms"] == expected
    assert merged["revision"] == 4


@pytest.mark.parametrize("content", ["", "[]", '{"deadline_ms": "soon"}', '{"deadline'])
def test_a_file_that_says_something_else_is_no_notice(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notice.json"
    assert FileNotices(path).poll() is None
    path.write_text(content)
    assert FileNotices(path).poll() is None


def test_older_directives_are_ignored_and_a_notice_stays(directory: AllocationDirectory) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    allocation.direct({"revision": 5, "length": 100})
    allocation.direct({"revision": 4, "length": 50})
    allocation.notify(Notice(2000, "spot"))
    allocation.direct({"revision": 6, "length": 200, "preempt": None})
    assert directory.read_directives() == {
        "revision": 6,
        "length": 200,
        "preempt": {"deadline_ms": 2000, "reason": "spot"},
    }


def test_a_flood_of_lines_is_slowed_down(directory: AllocationDirectory) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    allocation.charge(4000)
    assert not allocation.throttled
    # 9,000 lines at once: at most 5,000 and what a moment refills are allowed.
    allocation.charge(5000)
    assert allocation.throttled


def test_a_torn_own_record_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "report-agent.jsonl"
    path.write_bytes(b'{"kind":"container"}\n{"ki')
    own = OwnReport(path)
    own.append("exited", code=0)
    own.append("more")
    assert [line.kind for line in own.lines(0)] == ["container", "agent_warning", "exited", "more"]
    assert own.lines(0)[-1].offset == own.size
    assert [record["kind"] for record in own.records()] == ["container", "exited", "more"]


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "a" * 200])
def test_only_plain_names_are_allocations(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="allocation id"):
        AllocationDirectory(tmp_path, name)


def test_deleting_never_follows_links_and_opens_closed_directories(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    tree = tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    (tree / "closed/file").touch()
    (tree / "closed").chmod(0)
    (tree / "link").symlink_to(kept)
    (tmp_path / "alias").symlink_to(kept)
    delete_tree(tree)
    delete_tree(tmp_path / "alias")
    assert not tree.exists()
    assert not (tmp_path / "alias").is_symlink()
    assert (kept / "file").exists()


class Downloads:
    """Serves archives by path and counts."""

    def __init__(self, archives: dict[str, bytes]) -> None:
        self.archives = archives
        self.count = 0

    def __call__(self, path: str, file: BinaryIO) -> int:
        self.count += 1
        return file.write(self.archives[path])


def test_model_code_is_fetched_once_and_every_copy_is_its_own(tmp_path: Path) -> None:
    archive = tar({"model.py": "x = 1\n"})
    code = CodeReference(hashlib.sha256(archive).hexdigest(), len(archive), "/code")
    downloads = Downloads({"/code": archive})
    cache = CodeCache(tmp_path / "cache", downloads)
    for name in ("one", "two"):
        cache.unpack(code, tmp_path / name)
        assert (tmp_path / name / "model.py").read_text() == "x = 1\n"
        (tmp_path / name / "model.py").write_text("changed")
    assert downloads.count == 1
    (tmp_path / f"cache/{code.sha256}.tar.gz").write_bytes(b"tampered with")
    cache.unpack(code, tmp_path / "three")
    assert downloads.count == 2


def test_code_with_another_digest_is_refused_and_not_kept(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "cache", Downloads({"/code": b"other"}))
    with pytest.raises(CodeUnavailable, match="digest"):
        cache.unpack(CodeReference("0" * 64, 5, "/code"), tmp_path / "one")
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(CodeUnavailable, match="SHA-256"):
        CodeReference.parse({"sha256": "../../etc", "path": "/"})


def test_the_archives_used_last_are_kept(tmp_path: Path) -> None:
    archives = [tar({"n": str(n)}) for n in range(ARCHIVES_KEPT + 2)]
    digests = [hashlib.sha256(archive).hexdigest() for archive in archives]
    cache = CodeCache(tmp_path / "cache", Downloads(dict(zip(digests, archives, strict=True))))
    for n, digest in enumerate(digests):
        cache.unpack(CodeReference(digest, 0, digest), tmp_path / str(n))
    kept = {path.name.split(".")[0] for path in (tmp_path / "cache").iterdir()}
    assert kept == set(digests[2:])


def test_a_file_that_is_no_object_reads_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(json.dumps([1]))
    assert read_object(tmp_path / "list") is None
    assert read_object(tmp_path / "missing") is None


def test_a_log_is_marked_at_most_every_quarter_of_a_second() -> None:
    marks = LogMarks()
    for size, time_ms in [(0, 1000), (10, 1000), (20, 1100), (30, 1250), (30, 9000), (40, 9000)]:
        marks.seen(size, time_ms)
    # Bytes 0 to 19 came by 1,100, within 250 ms of the first mark; 20 to 29 and 30 to 39 later.
    assert marks.within(0, 40) == [(0, 1000), (20, 1250), (30, 9000)]
    assert marks.within(20, 30) == [(20, 1250)]
    assert marks.within(25, 35) == [(20, 1250), (30, 9000)]
    marks.taken(25)
    assert marks.within(25, 40) == [(20, 1250), (30, 9000)]
    assert marks.within(0, 1) == []


def test_marks_that_nobody_takes_become_fewer() -> None:
    marks = LogMarks()
    for n in range(3 * MARKS_MAX):
        marks.seen(n + 1, 250 * n)
    found = marks.within(0, 3 * MARKS_MAX)
    assert found[0] == (0, 0)
    assert MARKS_SENT_MAX // 4 < len(found) <= MARKS_SENT_MAX
    # A mark still holds the time of its own byte.
    assert all(time_ms == 250 * offset for offset, time_ms in found)


SPEC: dict[str, Any] = {
    "node_rank": 1,
    "nodes": 2,
    "rank": 1,
    "size": 2,
    "hosts": ["10.0.0.1", "10.0.0.2"],
    "rendezvous_port": 20_500,
    "slots": [0, 1],
}


def test_the_nodes_of_a_trial_find_each_other_by_their_environment(
    directory: AllocationDirectory,
) -> None:
    found = trial_environment(
        shared_environment({}, 1),
        ["RANK=7", "DETCLOUD_NODES=9"],
        directory,
        [],
        gang_variables(SPEC),
    )
    expected = {
        "DETCLOUD_NODES": "2",
        "DETCLOUD_NODE_RANK": "1",
        "DETCLOUD_HOSTS": "10.0.0.1,10.0.0.2",
        "DETCLOUD_RENDEZVOUS_PORT": "20500",
        "DETCLOUD_SLOTS": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20500",
        "NODE_RANK": "1",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    assert {name: found[name] for name in expected} == expected


def test_a_trial_on_one_node_is_not_taken_for_a_distributed_one() -> None:
    alone = gang_variables({"nodes": 1, "hosts": ["127.0.0.1"], "slots": [3]})
    assert (alone["DETCLOUD_NODES"], alone["DETCLOUD_SLOTS"]) == ("1", "1")
    assert all(name.startswith("DETCLOUD_") for name in alone)


def test_lines_that_are_not_whole_wait() -> None:
    for text, whole in (("a\nb", "a\n"), ("10%\r20%\r3", "10%\r20%\r"), ("a", ""), ("a\n", "a\n")):
        assert whole_lines(text) == whole


def test_an_agent_of_a_gang_sends_whole_lines_until_the_end(tmp_path: Path) -> None:
    made = AllocationDirectory(tmp_path / "allocations", "4.1")
    made.create()
    made.write_spec({"nodes": 2})
    allocation = Allocation(made, ProcessRuntime(None))
    made.log.write_text("one\ntwo")
    # Seven bytes, of which the last three are no line yet; where there is more, pieces are full.
    assert allocation.log(100) == (0, "one\n", False)
    assert allocation.log(2) == (0, "on", True)
    allocation.fail("lost", "gone")
    assert allocation.log(100) == (0, "one\ntwo", False)


def test_an_exit_says_that_its_machine_was_about_to_end() -> None:
    status = Status(Phase.ENDED, code=0, stage="trial")
    said = [{"reason": "preempted", "directive_revision": 2}]
    record = exited_record(status, said, "", revision=1, notice="spot" + "x" * 300)
    assert record["notice"] == "spot" + "x" * 196
    assert "notice" not in exited_record(status, said, "", revision=1)


def test_an_agent_is_reached_where_it_speaks_from() -> None:
    assert own_address("http://127.0.0.1:8080") == "127.0.0.1"
    assert own_address("http://host:99999") == "127.0.0.1"
