"""`detcloud deploy`, with a substitute for the child process that deploys."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import detcloud as package
from detcloud.cli.commands import deploy
from detcloud.cli.framework.command_parser import Handler
from detcloud.cli.framework.deployable_clouds import DeployableCloud, find_cloud
from detcloud.shared.errors import DetcloudError
from tests.conftest import require
from tests.unit.cli.conftest import Detcloud

Words = list[str]


class Child:
    """Substitute for the child process `python -m infra.deploy`.

    A call records the command line, passes the line "creating" to `handle_line`, and returns a
    process with `answer` as JSON on stdout.
    """

    def __init__(self) -> None:
        self.words: Words = []
        self.hows: list[str] = []
        self.answer: dict[str, Any] = {}
        self.sha256 = ""

    def __call__(
        self, module: str, words: Sequence[str], handle_line: Callable[[str], bool]
    ) -> subprocess.CompletedProcess[str]:
        assert module == "infra.deploy"
        self.words = list(words)
        self.hows.append(words[0])
        handle_line("creating\n")
        given = next(word.partition("=")[2] for word in words if word.startswith("--admin-sha256="))
        answer = {"admin_sha256": self.sha256 or given, "outputs": {}, **self.answer}
        return subprocess.CompletedProcess([], 0, json.dumps(answer), "")


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    for needed in ("pulumi_aws", "botocore"):
        require(needed)
    stands_in = Child()
    stands_in.answer = {"outputs": {"url": "https://x", "cluster": "detcloud-vision"}}
    monkeypatch.setattr("detcloud.cli.commands.deployment_process.run_module", stands_in)
    Path("Pulumi.vision.yaml").write_text("config: {}\n")
    return stands_in


def stored_credentials(own_home: Path) -> Any:
    return json.loads((own_home / ".detcloud" / "credentials.json").read_text())


def test_first_deployment_stores_the_administrators_token(
    detcloud: Detcloud, child: Child, own_home: Path
) -> None:
    done = detcloud("deploy", "aws", "--team", "vision")
    assert done.code == 0
    assert done.out.startswith("the cluster detcloud-vision is up at https://x\n")
    assert done.err == "creating\n"
    file = own_home / ".detcloud" / "teams" / "vision.token"
    token = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert stored_credentials(own_home) == {"url": "https://x", "token": token}
    digest = hashlib.sha256(token.encode()).hexdigest()
    assert child.words == [
        "deploy",
        "--cloud=aws",
        "--team=vision",
        "--settings=Pulumi.vision.yaml",
        f"--admin-sha256={digest}",
    ]
    assert token not in done.out + done.err


def test_second_deployment_uses_the_stored_token(detcloud: Detcloud, child: Child) -> None:
    detcloud("deploy", "aws", "--team", "vision")
    first = child.words
    detcloud("deploy", "aws", "--team", "vision")
    assert child.words == first


def test_a_foreign_administrators_cluster_is_not_taken_over(
    detcloud: Detcloud, child: Child, own_home: Path
) -> None:
    child.sha256 = "a" * 64
    done = detcloud("deploy", "aws", "--team", "vision")
    assert "the stack's settings name another first administrator" in done.out
    assert not (own_home / ".detcloud" / "credentials.json").exists()


def test_deployment_keeps_stored_credentials_of_the_current_cluster(
    detcloud: Detcloud, child: Child, own_home: Path
) -> None:
    known = own_home / ".detcloud" / "credentials.json"
    known.parent.mkdir()
    known.write_text('{"url": "https://other", "token": "t"}')
    done = detcloud("deploy", "aws", "--team", "vision")
    assert stored_credentials(own_home)["url"] == "https://other"
    assert "detcloud --url https://x token login - < " in done.out


def test_preview_counts_pending_changes(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"changes": {"same": 2, "create": 77}}
    done = detcloud("deploy", "aws", "--team", "vision", "--preview", "--config", __file__)
    assert child.words[3:5] == [f"--settings={__file__}", "--preview"]
    assert done.out == "nothing was changed; resources: 77 to create, 2 unchanged\n"


def test_export_prints_the_next_commands(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"files": ["main.tf.json", "functions-arm64.zip"]}
    done = detcloud("deploy", "export", "--team", "vision", "--output", "out")
    out = Path("out").absolute()
    assert child.words[:5] == [
        "export",
        "--cloud=aws",
        "--team=vision",
        "--settings=Pulumi.vision.yaml",
        f"--output={out}",
    ]
    assert f"{out} has main.tf.json and functions-arm64.zip" in done.out
    assert f"`terraform -chdir={out} apply`" in done.out
    assert "vision.token" in done.out


def test_errors_of_the_child_process_are_printed(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"error": "a was refused\nb"}
    done = detcloud("deploy", "aws", "--team", "vision")
    assert (done.code, done.err) == (1, "creating\nerror: a was refused\nb\n")


@pytest.mark.parametrize("team", ["../vision", "Vision", "a" * 21, ""])
def test_malformed_team_name_is_refused(detcloud: Detcloud, child: Child, team: str) -> None:
    done = detcloud("deploy", "aws", "--team", team)
    assert done.code == 2
    assert "is not a team name; expected 1 to 20 lowercase letters" in done.err
    assert child.words == []


def test_missing_settings_file_is_an_error(detcloud: Detcloud, child: Child) -> None:
    done = detcloud("deploy", "aws", "--team", "speech")
    assert done.code == 1
    assert "settings file Pulumi.speech.yaml does not exist; docs/aws.md describes" in done.err


def test_missing_packages_are_named(
    detcloud: Detcloud, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = DeployableCloud("aws", "AWS", ("pulumi_none",))
    command = Handler(deploy.add_cloud_arguments, partial(deploy.deploy_to_cloud, lacking))
    monkeypatch.setitem(deploy.HANDLERS, "deploy aws", command)
    done = detcloud("deploy", "aws", "--team", "vision")
    assert "missing packages: pulumi_none; pip install 'detcloud[infra]'" in done.err


def test_token_file_without_a_token_is_an_error(
    detcloud: Detcloud, child: Child, own_home: Path
) -> None:
    file = own_home / ".detcloud" / "teams" / "vision.token"
    file.parent.mkdir(parents=True)
    file.write_text("\n")
    done = detcloud("deploy", "aws", "--team", "vision")
    assert f"{file} must hold a token, dct_...; without the file one is made" in done.err


FINE = {"level": "fine", "subject": "image", "text": "AWS's is ami-1", "remedy": ""}
NO_QUOTA = {
    "level": "error",
    "subject": "quota",
    "text": "0 vCPUs",
    "remedy": "request an increase",
}


def test_check_prints_a_line_per_finding(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"findings": [FINE, NO_QUOTA]}
    done = detcloud("deploy", "check", "aws", "--team", "vision")
    assert (child.hows, done.code) == (["check"], 1)
    assert done.out.splitlines() == [
        "fine     image: AWS's is ami-1",
        "error    quota: 0 vCPUs; request an increase",
    ]
    done = detcloud("deploy", "check", "aws", "--team", "vision", "--json")
    assert json.loads(done.out) == [FINE, NO_QUOTA]


def test_a_check_without_errors_succeeds(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"findings": [FINE, {**NO_QUOTA, "level": "warning"}]}
    assert detcloud("deploy", "check", "aws", "--team", "vision").code == 0


TABLE = {
    "change": "replace",
    "type": "aws:dynamodb/table:Table",
    "name": "table",
    "properties": ["hashKey"],
    "loses_content": True,
}


def test_upgrade_is_previewed_before_confirmation(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"changes": [TABLE], **child.answer}
    done = detcloud("deploy", "upgrade", "aws", "--team", "vision")
    assert (done.code, child.hows) == (1, ["preview"])
    assert "Apply 1 change, and lose the content of Table table: confirm with --yes" in done.err
    done = detcloud("deploy", "upgrade", "aws", "--team", "vision", "--yes")
    assert (done.code, child.hows) == (0, ["preview", "preview", "deploy"])
    # The account was checked before the changes were shown.
    assert child.words[-2] == "--no-check"
    first, second = done.out.splitlines()[:3:2]
    cells = [[cell.strip() for cell in line.split("|")] for line in (first, second)]
    assert cells[0] == ["Change", "Type", "Name", "Properties", "Content"]
    assert cells[1] == ["replace", "aws:dynamodb/table:Table", "table", "hashKey", "lost"]


def test_upgrade_of_an_unchanged_cluster_does_nothing(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"changes": []}
    done = detcloud("deploy", "upgrade", "aws", "--team", "vision", "--yes")
    assert (done.code, done.out) == (0, "the cluster matches its settings\n")
    assert child.hows == ["preview"]


def test_destroy_requires_confirmation(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"instances": 2, "templates": 1, "leftovers": [], "remote_leftovers": []}
    done = detcloud("deploy", "destroy", "aws", "--team", "vision")
    assert (done.code, child.hows) == (1, [])
    assert "delete the cluster, experiments and checkpoints: confirm with --yes" in done.err
    done = detcloud("deploy", "destroy", "aws", "--team", "vision", "--yes")
    assert (done.code, child.hows) == (0, ["destroy"])
    assert done.out.splitlines() == [
        "2 instances ended, 1 launch template deleted",
        "the cluster vision was deleted",
    ]


def test_destroy_lists_leftover_resources(detcloud: Detcloud, child: Child) -> None:
    left = {"leftovers": ["arn:aws:sqs:x"], "remote_leftovers": []}
    child.answer = {"instances": 0, "templates": 0, **left}
    done = detcloud("deploy", "destroy", "aws", "--team", "vision", "--yes")
    assert done.code == 1
    assert "still listed with the cluster's tag: arn:aws:sqs:x" in done.out


def test_destroy_lists_leftovers_of_other_clouds_and_the_removing_command(
    detcloud: Detcloud, child: Child
) -> None:
    left = {"leftovers": [], "remote_leftovers": ["the role x in the account 2"]}
    child.answer = {"instances": 0, "templates": 0, **left}
    done = detcloud("deploy", "destroy", "gcp", "--team", "vision", "--yes")
    # The role was created by a script that only the manager of the foreign account may run.
    assert done.code == 0
    assert done.out.splitlines()[1:3] == [
        "not deleted in another cloud: the role x in the account 2",
        "`detcloud deploy trust gcp --team vision --remove` prints the script that removes what is "
        "left in other clouds",
    ]


def test_drain_only_terminates_instances_and_keeps_the_stack(
    detcloud: Detcloud, child: Child
) -> None:
    child.answer = {"instances": 2, "templates": 1}
    done = detcloud("deploy", "destroy", "aws", "--team", "vision", "--yes", "--drain-only")
    assert (done.code, child.hows) == (0, ["drain"])
    assert done.out.endswith("the cluster will not launch any more instances\n")


def test_deployers_policy_is_printed_unchanged(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"policy": '{"Version": "2012-10-17"}\n'}
    done = detcloud("deploy", "policy", "aws", "--team", "vision", "--key")
    assert (done.code, done.out) == (0, '{"Version": "2012-10-17"}\n')
    assert "--key" in child.words
    assert detcloud("deploy", "policy", "aws", "--team", "vision", "--launches").code == 0
    assert ("--launches" in child.words, "--key" in child.words) == (True, False)
    both = detcloud("deploy", "policy", "aws", "--team", "vision", "--launches", "--key")
    assert both.code == 2


def test_trust_commands_are_printed_unchanged(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"commands": "#!/bin/bash\ngcloud services enable sts.googleapis.com\n"}
    done = detcloud("deploy", "trust", "aws", "--team", "vision")
    assert (done.code, done.out, child.hows) == (0, child.answer["commands"], ["trust"])
    child.answer = {"commands": ""}
    done = detcloud("deploy", "trust", "aws", "--team", "vision")
    assert done.code == 1
    assert "nothing to create: the stack's settings list no other clouds" in done.err


# A program that registers a second cloud, the Moon, before the command line is imported.
SECOND = """
import sys
from detcloud.cli.framework import deployable_clouds as registry
moon = registry.DeployableCloud("moon", "the Moon", ("pulumi_moon",))
registry.CLOUDS = (registry.find_cloud("aws"), moon)
from detcloud.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def run_with_second_cloud(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-c", SECOND, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30)


def test_a_second_cloud_is_a_command_and_a_choice() -> None:
    helped = run_with_second_cloud("deploy", "--help").stdout
    assert "create or update a team's cluster on the Moon" in helped
    for words in (("deploy", "export"), ("debug", "dump")):
        assert "--cloud {aws,moon}" in run_with_second_cloud(*words, "--help").stdout
    assert "credentials for AWS or the Moon" in " ".join(
        run_with_second_cloud("debug", "dump", "--help").stdout.split()
    )


@pytest.mark.parametrize("how", [("moon",), ("export", "--cloud", "moon", "--output", "out")])
def test_a_second_cloud_needs_packages_of_its_own(how: tuple[str, ...]) -> None:
    done = run_with_second_cloud("deploy", *how, "--team", "vision")
    assert (done.returncode, done.stdout) == (1, "")
    assert "missing packages: pulumi_moon; pip install 'detcloud[infra]'" in done.stderr


def test_unknown_cloud_is_an_error() -> None:
    with pytest.raises(DetcloudError, match="'moon' is not a known cloud; expected aws or gcp"):
        find_cloud("moon")


def test_pruned_versions_are_counted(detcloud: Detcloud, child: Child) -> None:
    child.answer = {"versions": 12}
    done = detcloud("deploy", "prune", "aws", "--team", "vision")
    assert (child.hows, done.out) == (["prune"], "12 old function versions removed\n")
