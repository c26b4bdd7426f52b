"""The child process of `detcloud deploy`, with settings from a Pulumi file and a stub engine."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pulumi
import pytest
from pulumi import automation

from infra.engine import DeployFailed
from infra.findings import Finding, Level
from infra.sources import REPOSITORY
from infra.stack_program import (
    DrainReport,
    DroppedAccount,
    FunctionMove,
    PruneFailed,
    RollbackFailed,
)
from infra.terraform.export import FILE
from tests.unit.infra.deploy_calls import DIGEST, SETTINGS, Run, install_engine, write_settings
from tests.unit.infra.engine_stub import Engine


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return write_settings(tmp_path)


@pytest.fixture
def run(settings: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(settings, capsys)


@pytest.fixture
def account(run: Run) -> list[Finding]:
    """The findings of the account check, empty at first."""
    findings: list[Finding] = []
    run.program = replace(
        run.program,
        check_account=lambda team, config: findings,
        prune=lambda *_: 0,
        read_stores=lambda team, config: [],
    )
    return findings


@pytest.fixture
def engine(account: list[Finding], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    """A machine on which the engine is installed."""
    return install_engine(monkeypatch, tmp_path)


def test_missing_engine_error_names_the_export(
    run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    code, answer = run("deploy")
    assert code == 1
    assert answer["error"].startswith("Pulumi's engine is not installed; https://www.pulumi.com/")
    assert "`detcloud deploy export`" in answer["error"]
    assert settings.read_text() == SETTINGS


def test_engine_gets_the_settings_of_the_file(run: Run, engine: Engine, settings: Path) -> None:
    code, answer = run("deploy")
    assert (code, answer) == (0, {"admin_sha256": DIGEST, "outputs": {"url": "https://x"}})
    assert engine.asked == ["detcloud/vision", "up"]
    assert engine.config == {
        "detcloud:account": "111111111111",
        "detcloud:region": "us-east-1",
        "detcloud:clusterConfig": str(settings.parent / "pools.yaml"),
        "detcloud:archive": str(settings.parent / "functions.zip"),
        "detcloud:suggestArchive": str(settings.parent / "suggest.zip"),
        "detcloud:logDays": "30",
        "detcloud:adminSha256": DIGEST,
        "aws:profile": "work",
    }


def test_later_deployments_keep_the_first_administrator(
    run: Run, engine: Engine, settings: Path
) -> None:
    run("deploy")
    line = f'  detcloud:adminSha256: "{DIGEST}"\n'
    first, _, rest = SETTINGS.partition("  detcloud:account")
    assert settings.read_text() == f"{first}{line}  detcloud:account{rest}"
    settings.write_text(settings.read_text().replace(DIGEST, "d" * 64))
    assert run("deploy")[1]["admin_sha256"] == "d" * 64
    assert engine.config["detcloud:adminSha256"] == "d" * 64


def test_administrator_is_stored_before_the_deployment(
    run: Run, engine: Engine, settings: Path
) -> None:
    engine.error = automation.CommandError(
        automation.CommandResult(stdout="", stderr="error: no credentials", code=255)
    )
    code, answer = run("deploy")
    assert code == 1
    assert "error: no credentials" in answer["error"]
    assert DIGEST in settings.read_text()


def test_preview_changes_no_stack_and_no_settings(run: Run, engine: Engine, settings: Path) -> None:
    assert run("deploy", "--preview") == (0, {"changes": {"create": 79}})
    assert engine.asked == ["detcloud/vision", "preview"]
    assert settings.read_text() == SETTINGS


def test_export_writes_the_document_and_the_archives(
    run: Run, settings: Path, tmp_path: Path
) -> None:
    code, answer = run("export", f"--output={tmp_path / 'out'}")
    assert (code, answer["files"]) == (0, [FILE, "functions.zip", "suggest.zip"])
    document = json.loads((tmp_path / "out" / FILE).read_text())
    api = document["resource"]["aws_lambda_function"]["api"]
    assert api["environment"][0]["variables"]["DETCLOUD_ADMIN_SHA256"] == DIGEST
    assert DIGEST in settings.read_text()


def test_archives_are_built_if_the_settings_name_no_archive(
    run: Run, settings: Path, tmp_path: Path
) -> None:
    archives = "  detcloud:archive: functions.zip\n  detcloud:suggestArchive: suggest.zip\n"
    settings.write_text(SETTINGS.replace(archives, ""))

    def build(kind: str, architecture: str, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        archive = folder / f"{kind}-{architecture}.zip"
        archive.write_bytes(b"built")
        return archive

    run.program = replace(run.program, archives=replace(run.program.archives, build=build))
    _, answer = run("export", f"--output={tmp_path / 'out'}")
    assert answer["files"] == [FILE, "functions-arm64.zip", "suggest-arm64.zip"]
    assert (tmp_path / "out" / "functions-arm64.zip").read_bytes() == b"built"


@pytest.mark.parametrize("is_exported", [False, True])
def test_failed_export_leaves_the_folder_unchanged(
    is_exported: bool, run: Run, settings: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    if is_exported:
        assert run("export", f"--output={output}")[0] == 0
    before = {file.name: file.read_bytes() for file in output.glob("*")}
    archives = "  detcloud:archive: functions.zip\n  detcloud:suggestArchive: suggest.zip\n"
    settings.write_text(SETTINGS.replace(archives, ""))

    def build(kind: str, architecture: str, folder: Path) -> Path:
        if kind == "suggest":
            raise DeployFailed("no room")
        archive = folder / f"{kind}-{architecture}.zip"
        archive.write_bytes(b"built")
        return archive

    run.program = replace(run.program, archives=replace(run.program.archives, build=build))
    assert run("export", f"--output={output}") == (1, {"error": "no room"})
    assert {file.name: file.read_bytes() for file in output.glob("*")} == before
    assert output.exists() == is_exported
    assert settings.read_text() == SETTINGS.replace(archives, "")


def test_stack_without_a_counterpart_in_terraform_is_an_error(run: Run, tmp_path: Path) -> None:
    def declare_unknown_resource() -> None:
        pulumi.CustomResource("aws:none/none:None", "one", {})

    run.program = replace(run.program, run=declare_unknown_resource, run_export=None)
    status, answer = run("export", f"--output={tmp_path / 'out'}")
    assert (status, list(answer)) == (1, ["error"])
    assert "which is a bug: " in answer["error"]
    assert "aws:none/none:None" in answer["error"]


AWS = "resource_pools: [{pool_name: default, provider: {type: aws}}, {pool_name: desk}"


@pytest.mark.parametrize("how", ["deploy", "export"])
def test_pools_with_default_types_cause_warnings(
    how: str,
    run: Run,
    engine: Engine,
    settings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pools = settings.with_name("pools.yaml")
    pools.write_text(AWS + ", {pool_name: more, provider: {type: aws}}]\n")
    assert run(how, f"--output={tmp_path / 'out'}")[0] == 0
    types = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    notice = "provider.instance_type is not set: instances are g4dn.xlarge with 1 T4"
    for name, text in zip(("default", "more"), types, strict=True):
        assert text.startswith(f"warning: {pools}: pool {name}: {notice}")


@pytest.mark.parametrize("team", ["vision", "speech"])
def test_example_settings_export_without_warnings(
    team: str, run: Run, settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (f"Pulumi.{team}.yaml", "pools.yaml"):
        shutil.copy(REPOSITORY / "infra" / "aws" / file, tmp_path)
    example = (tmp_path / f"Pulumi.{team}.yaml").read_text()
    archives = "  detcloud:archive: functions.zip\n  detcloud:suggestArchive: suggest.zip\n"
    settings.write_text(example + archives)
    code, answer = run("export", f"--team={team}", f"--output={tmp_path / 'out'}")
    assert code == 0, answer
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SETTINGS.replace("30", "8"), 'detcloud:logDays is "8": expected one of 1, 3,'),
        (SETTINGS.replace("pools.yaml", "none.yaml"), "none.yaml cannot be read: No such file"),
        ("config: [1\n", "line 2: this is not valid YAML"),
        ("config: nothing\n", "must have a map `config`"),
        ("", "must have a map `config`"),
    ],
)
def test_refuses_wrong_settings_before_the_engine_runs(
    text: str, expected: str, run: Run, engine: Engine, settings: Path
) -> None:
    settings.write_text(text)
    code, answer = run("deploy")
    assert code == 1
    assert answer["error"].startswith(f"{settings} was refused\n")
    assert expected in answer["error"]
    assert engine.asked == []


def test_missing_settings_file_is_named(run: Run, settings: Path, tmp_path: Path) -> None:
    settings.unlink()
    code, answer = run("export", f"--output={tmp_path / 'out'}")
    assert (code, answer["error"]) == (1, f"{settings}: No such file or directory")


def test_settings_map_on_a_single_line_is_not_edited(
    run: Run, settings: Path, tmp_path: Path
) -> None:
    settings.write_text(
        'config: {"detcloud:account": "111111111111", "detcloud:region": us-east-1, '
        '"detcloud:clusterConfig": pools.yaml, "detcloud:archive": functions.zip, '
        '"detcloud:suggestArchive": suggest.zip}\n'
    )
    code, answer = run("export", f"--output={tmp_path / 'out'}")
    assert code == 1
    assert answer["error"].endswith(f'add to that map:   detcloud:adminSha256: "{DIGEST}"\n')


NO_QUOTA = Finding(Level.ERROR, "quota", "0 vCPUs", "request an increase")
NO_ANSWER = Finding(Level.WARNING, "disks", "could not be checked", "the check needs x")


def test_account_errors_stop_a_deployment(
    run: Run, engine: Engine, account: list[Finding], capsys: pytest.CaptureFixture[str]
) -> None:
    account += [NO_QUOTA, NO_ANSWER]
    code, answer = run("deploy")
    assert code == 1
    assert answer["error"].splitlines() == [
        "the account was checked, and nothing was deployed; --no-check deploys anyway",
        "quota: 0 vCPUs; request an increase",
    ]
    assert "warning: disks: could not be checked; the check needs x" in capsys.readouterr().err
    assert "up" not in engine.asked
    assert run("deploy", "--no-check")[0] == 0
    assert engine.asked[-1] == "up"


def test_preview_prints_account_errors_and_continues(
    run: Run, engine: Engine, account: list[Finding], capsys: pytest.CaptureFixture[str]
) -> None:
    account += [NO_QUOTA]
    assert run("deploy", "--preview")[0] == 0
    assert "error: quota: 0 vCPUs; request an increase" in capsys.readouterr().err


def test_check_returns_all_findings(run: Run, account: list[Finding]) -> None:
    account += [NO_QUOTA, NO_ANSWER]
    code, answer = run("check")
    assert code == 0
    assert [finding["level"] for finding in answer["findings"]] == ["error", "warning"]
    assert answer["findings"][0] == {
        "level": "error",
        "subject": "quota",
        "text": "0 vCPUs",
        "remedy": "request an increase",
    }


def event(op: str, kind: str, name: str, *diffs: str) -> automation.EngineEvent:
    """Build the engine's event for a resource of a preview."""
    urn = f"urn:pulumi:vision::detcloud::detcloud:aws:TeamStack${kind}::{name}"
    step = {"op": op, "urn": urn, "type": kind, "provider": "", "diffs": list(diffs)}
    return automation.EngineEvent.from_json(
        {"sequence": 1, "timestamp": 1, "resourcePreEvent": {"metadata": step}}
    )


def test_upgrade_preview_names_changed_resources_and_lost_content(run: Run, engine: Engine) -> None:
    function, table = "aws:lambda/function:Function", "aws:dynamodb/table:Table"
    engine.events += [
        event("same", function, "tick"),
        event("update", function, "api", "environment", "code"),
        event("create-replacement", table, "table", "hashKey"),
        event("replace", table, "table", "hashKey"),
        event("update", "detcloud:aws:TeamStack", "vision"),
    ]
    code, answer = run("preview")
    assert code == 0
    names = ("change", "type", "name", "properties", "loses_content")
    assert [tuple(change[name] for name in names) for change in answer["changes"]] == [
        ("replace", table, "table", ["hashKey"], True),
        ("update", function, "api", ["code", "environment"], False),
    ]
    assert "up" not in engine.asked


def test_upgrade_preview_needs_a_deployed_stack(run: Run, engine: Engine) -> None:
    engine.is_there = False
    code, answer = run("preview")
    assert code == 1
    assert "has no stack vision: deploy the stack first" in answer["error"]


def test_destroy_drains_the_cluster_before_the_stack(
    run: Run, engine: Engine, settings: Path
) -> None:
    def drain(team: str, config: Mapping[str, object], progress: object) -> DrainReport:
        engine.asked.append(f"drain {team}")
        return DrainReport(instances=3, templates=2)

    run.program = replace(run.program, drain=drain, find_leftovers=lambda team, config: ["arn:x"])
    code, answer = run("destroy")
    # A stack is protected by default.
    assert code == 1
    assert "set detcloud:protect: false and deploy first" in answer["error"]
    settings.write_text(settings.read_text() + "  detcloud:protect: false\n")
    engine.asked.clear()
    code, answer = run("destroy")
    assert (code, answer) == (
        0,
        {"instances": 3, "templates": 2, "leftovers": ["arn:x"], "remote_leftovers": []},
    )
    assert engine.asked == ["detcloud/vision", "drain vision", "destroy", "forget vision"]


def test_drain_needs_no_engine(run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.program = replace(run.program, drain=lambda *_: DrainReport(1, 0))
    monkeypatch.setenv("PATH", "")
    settings.write_text(settings.read_text() + "  detcloud:protect: false\n")
    assert run("drain") == (0, {"instances": 1, "templates": 0})


def test_rollback_returns_the_moved_functions_or_the_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback needs no engine, since it moves aliases and leaves the stack's state unchanged."""

    def move(team: str, config: object, forward: bool, progress: object) -> list[FunctionMove]:
        if forward:
            raise RollbackFailed("the API has no version before 1")
        return [FunctionMove("api", "3", "2", f"of {team}")]

    run.program = replace(run.program, rollback=move)
    monkeypatch.setenv("PATH", "")
    moved = {"function": "api", "before": "3", "after": "2", "deployment": "of vision"}
    assert run("rollback") == (0, {"moves": [moved]})
    assert run("rollback", "--forward") == (1, {"error": "the API has no version before 1"})


def test_failed_pruning_after_a_deployment_is_only_a_warning(
    run: Run, engine: "Engine", capsys: pytest.CaptureFixture[str]
) -> None:
    def prune(team: str, config: object, progress: Callable[[str], None]) -> int:
        engine.asked.append(f"prune {team}")
        raise PruneFailed("deleted 0 old function versions, then AWS refused: no")

    run.program = replace(run.program, prune=prune)
    code, answer = run("deploy")
    assert (code, answer["outputs"]) == (0, {"url": "https://x"})
    assert engine.asked[-2:] == ["up", "prune vision"]
    assert "warning: deleted 0 old function versions" in capsys.readouterr().err
    # Pruning alone fails.
    assert run("prune")[0] == 1


def test_printed_policy_follows_the_settings(run: Run) -> None:
    policy = json.loads(run("policy")[1]["policy"])
    [own] = [item for item in policy["Statement"] if item["Sid"] == "Own"]
    assert "arn:aws:dynamodb:us-east-1:111111111111:table/detcloud-vision" in own["Resource"]
    statement = json.loads(run("policy", "--key")[1]["policy"])
    assert statement["Principal"] == {"Service": "logs.us-east-1.amazonaws.com"}
    launches = json.loads(run("policy", "--launches")[1]["policy"])
    actions = {action for item in launches["Statement"] for action in item["Action"]}
    assert actions == {
        "ec2:CreateFleet",
        "ec2:CreateLaunchTemplate",
        "ec2:CreateTags",
        "ec2:RunInstances",
        "iam:PassRole",
        "ssm:GetParameters",
        "sts:DecodeAuthorizationMessage",
    }


def test_cloud_without_a_check_of_launches_prints_no_policy_for_it(run: Run) -> None:
    run.program = replace(run.program, launch_policy=None)
    code, answer = run("policy", "--launches")
    assert (code, answer["error"][:22]) == (1, "--launches is for AWS:")


def test_trust_prints_commands_for_the_remote_account(run: Run, settings: Path) -> None:
    assert run("trust") == (0, {"commands": ""})
    remote = '{"project": "acme-ml", "projectNumber": "12345", "region": "us-central1"}'
    settings.write_text(f"{SETTINGS}  detcloud:otherClouds: {{gcp: {remote}}}\n")
    code, answer = run("trust")
    assert (code, answer["commands"].splitlines()[0]) == (0, "#!/bin/bash")
    assert "gcloud iam workload-identity-pools create detcloud-vision " in answer["commands"]
    code, answer = run("trust", "--remove")
    assert (code, answer["commands"].splitlines()[0]) == (0, "#!/bin/bash")
    assert "gcloud iam workload-identity-pools delete detcloud-vision " in answer["commands"]


def test_refuses_to_drop_a_remote_account_with_instances(run: Run, engine: Engine) -> None:
    remote = DroppedAccount("gcp", "the project acme-ml", ("vm-1",), ("the instance vm-1",), "")
    run.program = replace(run.program, find_dropped_accounts=lambda *_: [remote])
    # A stack that was deployed without remote accounts has no account to drop.
    assert run("deploy")[0] == 0
    engine.deployed["otherClouds"] = '{"gcp": {}}'
    for how in ("deploy", "preview"):
        engine.asked.clear()
        code, answer = run(how)
        assert (code, engine.asked) == (1, ["detcloud/vision"])
        assert "no longer has the project acme-ml" in answer["error"]
    assert run("deploy", "--no-check")[0] == 0


def test_check_and_export_refuse_a_pool_in_a_wrong_region(run: Run, settings: Path) -> None:
    pools = settings.with_name("pools.yaml")
    pools.write_text(AWS.replace("aws}", "aws, region: eu-west-1}") + "]\n")
    for how in ("check", "export"):
        code, answer = run(how, f"--output={settings.parent / 'out'}")
        assert code == 1
        assert "provider.region is eu-west-1: expected us-east-1" in answer["error"]


def test_verify_runs_a_part_of_the_self_test(run: Run) -> None:
    code, answer = run("verify", "--part=place")
    assert (code, answer["account"], answer["region"]) == (0, "111111111111", "us-east-1")
