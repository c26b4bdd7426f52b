"""`detcloud deploy restore`, with a substitute for the child process that restores."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.unit.cli.conftest import Detcloud

REPORT = {
    "written": 2,
    "deleted": 1,
    "experiments": 3,
    "agents": 1,
    "incarnation": "i",
    "is_new_store": False,
}


class Child:
    """Substitute for the child process; `answers` has the answer to each command."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.answers: dict[str, Any] = {"restore": REPORT, "deploy": {"outputs": {}}}

    def __call__(
        self, module: str, words: Sequence[str], handle_line: Callable[[str], bool]
    ) -> subprocess.CompletedProcess[str]:
        self.calls.append([word for word in words if not word.startswith("--admin-sha256=")])
        handle_line("stopping\n")
        return subprocess.CompletedProcess([], 0, json.dumps(self.answers[words[0]]), "")


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, own_home: Path) -> Child:
    for needed in ("pulumi_aws", "pulumi_gcp", "botocore"):
        require(needed)
    stands_in = Child()
    monkeypatch.setattr("detcloud.cli.commands.deployment_process.run_module", stands_in)
    Path("Pulumi.vision.yaml").write_text("config: {}\n")
    return stands_in


MOMENT = "2026-11-20T12:00:00Z"


def test_moment_is_restored_without_a_deployment(detcloud: Detcloud, child: Child) -> None:
    done = detcloud("deploy", "restore", "aws", "--team", "vision", "--time", MOMENT, "--yes")
    assert done.code == 0
    stack = ["--cloud=aws", "--team=vision", "--settings=Pulumi.vision.yaml"]
    assert child.calls == [["restore", *stack, f"--time={MOMENT}"]]
    assert done.out == (
        "the state is restored (2 rows written, 1 row deleted), and the functions run again\n"
        "from checkpoints continue: 3 experiments; counted as lost until they enrol: 1 agent\n"
    )
    assert done.err == "stopping\n"


def test_new_store_is_connected_by_a_deployment(detcloud: Detcloud, child: Child) -> None:
    child.answers["restore"] = {**REPORT, "is_new_store": True}
    done = detcloud("deploy", "restore", "gcp", "--team", "vision", "--yes")
    assert [words[0] for words in child.calls] == ["restore", "deploy"]
    assert "--no-check" in child.calls[1]
    assert "the state is restored (from a backup)" in done.out
    assert done.out.endswith("the functions are connected to the restored store\n")


def test_error_of_the_deployment_tells_that_the_state_is_restored(
    detcloud: Detcloud, child: Child
) -> None:
    child.answers = {
        "restore": {**REPORT, "is_new_store": True},
        "deploy": {"error": "Pulumi's engine is not installed"},
    }
    done = detcloud("deploy", "restore", "aws", "--team", "vision", "--yes")
    assert done.code != 0
    assert "the state is restored and the functions run, but" in done.err
    assert "`terraform apply` for an exported stack" in done.err
    assert "Pulumi's engine is not installed" in done.err


def test_restore_asks_first(detcloud: Detcloud, child: Child) -> None:
    done = detcloud("deploy", "restore", "aws", "--team", "vision", "--from", "arn:x")
    assert done.code != 0
    assert child.calls == []
    assert "restore the state of arn:x? Everything since then is lost" in done.err


def test_time_and_source_exclude_each_other(detcloud: Detcloud, child: Child) -> None:
    done = detcloud(
        "deploy", "restore", "aws", "--team", "vision", "--time", MOMENT, "--from", "arn:x"
    )
    assert (done.code, child.calls) == (2, [])


def test_flags_reach_the_deployment(detcloud: Detcloud, child: Child) -> None:
    child.answers["deploy"] = {"changes": {}}
    detcloud("deploy", "aws", "--team", "vision", "--preview", "--refresh", "--new-stores")
    assert child.calls[0][-3:] == ["--preview", "--refresh", "--new-stores"]


def test_policy_of_a_restore_is_printed(detcloud: Detcloud, child: Child) -> None:
    child.answers["policy"] = {"policy": "{}\n"}
    done = detcloud("deploy", "policy", "aws", "--team", "vision", "--restore")
    assert done.out == "{}\n"
    assert child.calls[0][-1] == "--restore"


FILES = {"intact": 3, "restored": ["1/1/1/a"], "files": 2, "lost": []}


def test_lost_objects_are_restored_without_a_question(detcloud: Detcloud, child: Child) -> None:
    child.answers["objects"] = {"objects": 1, "checkpoints": FILES}
    words = ("deploy", "restore", "gcp", "--team", "vision", "--objects", "--time", MOMENT)
    done = detcloud(*words)
    assert done.code == 0
    assert [(words[0], words[-1]) for words in child.calls] == [("objects", f"--time={MOMENT}")]
    assert done.out == (
        "code, logs, metrics, events: 1 object restored\n"
        "checkpoints: 3 intact, 1 restored (2 files), 0 lost\n"
    )


def test_lost_checkpoints_are_named(detcloud: Detcloud, child: Child) -> None:
    lost = {**FILES, "lost": ["1/1/1/b"]}
    child.answers["objects"] = {"objects": 0, "checkpoints": lost}
    done = detcloud("deploy", "restore", "aws", "--team", "vision", "--objects")
    assert done.code == 1
    assert "1 lost\nlost: 1/1/1/b\nruns that need a lost checkpoint continue" in done.out


def test_objects_have_no_source(detcloud: Detcloud, child: Child) -> None:
    words = ("deploy", "restore", "aws", "--team", "vision", "--objects", "--from", "s3://x")
    done = detcloud(*words)
    assert done.code != 0
    assert "--objects and --from exclude each other" in done.err
    assert child.calls == []
