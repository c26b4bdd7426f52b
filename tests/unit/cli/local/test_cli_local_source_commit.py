"""The commit of a folder, in real repositories of git."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from detcloud.cli.local.source_commit import commit_overrides, parse_repository
from detcloud.cli.main import main
from detcloud.shared.errors import DetcloudError
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, Cluster, build_cluster


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let git use no settings of the machine, and no repository above the test's folder."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=ann", "-c", "user.email=ann@example.com"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with code in a repository with one commit."""
    code = tmp_path / "repository" / "model"
    code.mkdir(parents=True)
    (code / "train.py").write_text("print(1)\n")
    (code / "const.yaml").write_text(CONFIG)
    git(code.parent, "init", "--quiet")
    git(code, "add", ".")
    git(code, "commit", "--quiet", "-m", "Add a model")
    return code


def test_clean_repository_states_commit_and_remote(folder: Path) -> None:
    commit = git(folder, "rev-parse", "HEAD")
    assert commit_overrides(folder) == [f'integrations.github.commit="{commit}"']
    git(folder, "remote", "add", "origin", "https://ann:secret@github.com/team/digits.git")
    stated = commit_overrides(folder / "train.py")
    assert stated[1:] == ['integrations.github.repository="team/digits"']


@pytest.mark.parametrize(
    ("remote", "repository"),
    [
        ("git@github.com:team/digits.git", "team/digits"),
        ("https://github.com/team/digits", "team/digits"),
        ("https://github.com/team/digits.git/", "team/digits"),
        ("ssh://git@ghe.example:2222/team/a.b", "team/a.b"),
        ("", ""),
        ("digits", ""),
        ("https://github.com/te am/x y", ""),
    ],
)
def test_repository_is_the_end_of_the_remote(remote: str, repository: str) -> None:
    assert parse_repository(remote) == repository


def test_changed_repository_is_refused(folder: Path) -> None:
    (folder / "new.py").write_text("")
    with pytest.raises(DetcloudError, match="has changes; commit them"):
        commit_overrides(folder)


def test_folder_without_a_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DetcloudError, match="has no commit"):
        commit_overrides(tmp_path)


def test_missing_git_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DetcloudError, match="git cannot be run"):
        commit_overrides(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = build_cluster(tmp_path / "objects")
    monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DETCLOUD_TOKEN", TOKENS[Role.USER])
    with serve_app(made.app) as url:
        monkeypatch.setenv("DETCLOUD_URL", url)
        yield made


def test_submission_states_the_commit(
    cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("create", str(folder / "const.yaml"), str(folder), "--git", "--json")
    assert main(words) == 0
    created = json.loads(capsys.readouterr().out)
    shown = cluster.get(f"/experiments/{created['id']}").json["config"]["integrations"]
    assert shown == {"github": {"commit": git(folder, "rev-parse", "HEAD")}}
    (folder / "train.py").write_text("print(2)\n")
    assert main(words) == 1
    assert "has changes" in capsys.readouterr().err
