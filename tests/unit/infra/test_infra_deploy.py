"""The child process of `detcloud deploy`: settings from a file of Pulumi's, and the engine where it
is.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulumi import automation

from infra import deploy
from infra.aws import bundle
from infra.aws.bundle import Target
from infra.sources import REPOSITORY
from infra.terraform.export import FILE

DIGEST = "c" * 64
SETTINGS = """\
# Ours.
config:  # of the team
  detcloud:account: "111111111111"
  detcloud:region: us-east-1
  detcloud:clusterConfig: pools.yaml
  detcloud:archive: functions.zip
  detcloud:suggestArchive: suggest.zip
  detcloud:logDays: 30
  aws:profile: work
"""

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    (tmp_path / "pools.yaml").write_text("resource_pools: [{pool_name: default}]\n")
    for name in ("functions.zip", "suggest.zip"):
        (tmp_path / name).write_bytes(b"PK\x05\x06" + bytes(18))
    file = tmp_path / "Pulumi.vision.yaml"
    file.write_text(SETTINGS)
    return file


@pytest.fixture
def run(settings: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The module's exit code and what it answers."""

    def run(how: str, *flags: str) -> tuple[int, dict[str, Any]]:
        words = [how, "--team=vision", f"--settings={settings}", f"--admin-sha256={DIGEST}", *flags]
        monkeypatch.setattr(sys, "argv", ["infra.deploy", *words])
        code = deploy.main()
        said = capsys.readouterr()
        sys.stderr.write(said.err)
        return code, json.loads(said.out)

    return run


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Engine":
    """A machine on which the engine is installed."""
    program = tmp_path / "pulumi"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    stands_in = Engine()
    monkeypatch.setattr(automation, "create_or_select_stack", stands_in.select_stack)
    return stands_in


class Engine:
    """A stand-in for Pulumi's engine: which stack, with which settings, to do what."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.config: dict[str, str] = {}
        self.error: Exception | None = None
        # The name that Pulumi's engine has for it.
        self.up = self.deploy_stack

    def select_stack(self, stack_name: str, project_name: str, program: object) -> "Engine":
        self.asked.append(f"{project_name}/{stack_name}")
        return self

    def set_all_config(self, config: Mapping[str, automation.ConfigValue]) -> None:
        self.config = {name: it.value for name, it in config.items()}

    def preview(self, *, on_output: Callable[[str], None], color: str) -> SimpleNamespace:
        self.asked.append("preview")
        return SimpleNamespace(change_summary={automation.OpType.CREATE: 79})

    def deploy_stack(self, *, on_output: Callable[[str], None], color: str) -> SimpleNamespace:
        self.asked.append("up")
        if self.error is not None:
            raise self.error
        on_output("creating")
        return SimpleNamespace(outputs={"url": automation.OutputValue("https://x", False)})


def test_without_the_engine_it_is_told_what_else_there_is(
    run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    code, found = run("aws")
    assert code == 1
    assert found["error"].startswith("Pulumi's engine is not installed; https://www.pulumi.com/")
    assert "`detcloud deploy export`" in found["error"]
    assert settings.read_text() == SETTINGS


def test_the_engine_is_told_what_the_file_says(run: Run, engine: Engine, settings: Path) -> None:
    code, found = run("aws")
    assert (code, found) == (0, {"admin_sha256": DIGEST, "outputs": {"url": "https://x"}})
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


def test_the_first_administrator_stays_who_deploys_later_or_elsewhere(
    run: Run, engine: Engine, settings: Path
) -> None:
    run("aws")
    line = f'  detcloud:adminSha256: "{DIGEST}"\n'
    first, _, rest = SETTINGS.partition("  detcloud:account")
    assert settings.read_text() == f"{first}{line}  detcloud:account{rest}"
    settings.write_text(settings.read_text().replace(DIGEST, "d" * 64))
    assert run("aws")[1]["admin_sha256"] == "d" * 64
    assert engine.config["detcloud:adminSha256"] == "d" * 64


def test_the_administrator_is_kept_before_the_cluster_knows_it(
    run: Run, engine: Engine, settings: Path
) -> None:
    engine.error = automation.CommandError(
        automation.CommandResult(stdout="", stderr="error: no credentials", code=255)
    )
    code, found = run("aws")
    assert code == 1
    assert "error: no credentials" in found["error"]
    assert DIGEST in settings.read_text()


def test_a_preview_changes_nothing(run: Run, engine: Engine, settings: Path) -> None:
    assert run("aws", "--preview") == (0, {"changes": {"create": 79}})
    assert engine.asked == ["detcloud/vision", "preview"]
    assert settings.read_text() == SETTINGS


def test_an_export_lies_beside_its_archives(run: Run, settings: Path, tmp_path: Path) -> None:
    code, found = run("export", f"--output={tmp_path / 'out'}")
    assert (code, found["files"]) == (0, [FILE, "functions.zip", "suggest.zip"])
    document = json.loads((tmp_path / "out" / FILE).read_text())
    api = document["resource"]["aws_lambda_function"]["api"]
    assert api["environment"][0]["variables"]["DETCLOUD_ADMIN_SHA256"] == DIGEST
    assert DIGEST in settings.read_text()


def test_archives_are_built_where_none_are_named(
    run: Run, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = "  detcloud:archive: functions.zip\n  detcloud:suggestArchive: suggest.zip\n"
    settings.write_text(SETTINGS.replace(archives, ""))

    def build_archive(target: Target, folder: Path, kind: str) -> Path:
        folder.mkdir(exist_ok=True)
        archive = folder / f"{kind}-{target.name}.zip"
        archive.write_bytes(b"built")
        return archive

    monkeypatch.setattr(bundle, "build_archive", build_archive)
    _, found = run("export", f"--output={tmp_path / 'out'}")
    assert found["files"] == [FILE, "functions-arm64.zip", "suggest-arm64.zip"]
    assert (tmp_path / "out" / "functions-arm64.zip").read_bytes() == b"built"


AWS = "resource_pools: [{pool_name: default, provider: {type: aws}}, {pool_name: desk}"
IMAGE = "task_container_defaults: {image: registry.example/trial:1}"


@pytest.mark.parametrize("how", ["aws", "export"])
def test_pools_whose_images_nobody_has_are_told_of_once(
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
    (told,) = [it for it in capsys.readouterr().err.splitlines() if it.startswith("warning: ")]
    assert f"{pools}: pools default, more: " in told
    assert "detcloud/trial:0.1.0-cuda, which no registry has" in told


@pytest.mark.parametrize(
    "text",
    [
        f"{AWS}]\n{IMAGE}",
        AWS.replace("aws}", "aws}, " + IMAGE) + "]",
        AWS.replace("aws}", "aws, image_id: ami-0123456789abcdef0}") + "]",
        "resource_pools: [{pool_name: default, provider: {type: local}}]",
    ],
)
def test_a_pool_that_says_where_its_image_is_needs_no_warning(
    text: str, run: Run, engine: Engine, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.with_name("pools.yaml").write_text(text + "\n")
    assert run("aws")[0] == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("team", ["vision", "speech"])
def test_the_examples_can_be_deployed(
    team: str, run: Run, settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (f"Pulumi.{team}.yaml", "pools.yaml"):
        shutil.copy(REPOSITORY / "infra" / "aws" / file, tmp_path)
    example = (tmp_path / f"Pulumi.{team}.yaml").read_text()
    archives = "  detcloud:archive: functions.zip\n  detcloud:suggestArchive: suggest.zip\n"
    settings.write_text(example + archives)
    code, found = run("export", f"--team={team}", f"--output={tmp_path / 'out'}")
    assert code == 0, found
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SETTINGS.replace("30", "8"), 'detcloud:logDays is "8": expected one of 1, 3,'),
        (SETTINGS.replace("pools.yaml", "none.yaml"), "none.yaml cannot be read: No such file"),
        ("config: [1\n", "line 2: this is no YAML"),
        ("config: nothing\n", "must have a map `config`"),
        ("", "must have a map `config`"),
    ],
)
def test_a_file_that_is_wrong_is_refused_before_anything_is_done(
    text: str, said: str, run: Run, engine: Engine, settings: Path
) -> None:
    settings.write_text(text)
    code, found = run("aws")
    assert code == 1
    assert found["error"].startswith(f"{settings} was refused\n")
    assert said in found["error"]
    assert engine.asked == []


def test_a_file_that_is_not_there_is_named(run: Run, settings: Path, tmp_path: Path) -> None:
    settings.unlink()
    code, found = run("export", f"--output={tmp_path / 'out'}")
    assert (code, found["error"]) == (1, f"{settings}: No such file or directory")


def test_a_map_on_one_line_is_left_to_its_owner(run: Run, settings: Path, tmp_path: Path) -> None:
    settings.write_text(
        'config: {"detcloud:account": "111111111111", "detcloud:region": us-east-1, '
        '"detcloud:clusterConfig": pools.yaml, "detcloud:archive": functions.zip, '
        '"detcloud:suggestArchive": suggest.zip}\n'
    )
    code, found = run("export", f"--output={tmp_path / 'out'}")
    assert code == 1
    assert found["error"].endswith(f'add to that map:   detcloud:adminSha256: "{DIGEST}"\n')
