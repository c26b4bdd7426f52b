"""`detcloud checkpoint upload` to the real API of the control plane."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, Cluster, build_cluster
from tests.unit.cli.conftest import Detcloud

ONE_TRIAL = CONFIG.replace("max_trials: 2", "max_trials: 1")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Serve the API with experiment 1 (trials 1 and 2) and experiment 2 (trial 3)."""
    cluster = build_cluster(tmp_path)
    cluster.create(CONFIG)
    cluster.create(ONE_TRIAL)
    Agent(cluster).take_work()
    Path("files").mkdir()
    Path("files/weights.bin").write_bytes(b"weights")
    monkeypatch.setenv("DETCLOUD_TOKEN", TOKENS[Role.USER])
    with serve_app(cluster.app) as url:
        monkeypatch.setenv("DETCLOUD_URL", url)
        yield cluster


def test_uploads_a_folder_as_a_checkpoint(cluster: Cluster, detcloud: Detcloud) -> None:
    words = ("--steps", "30", "--metadata", "data.version=3", "--metadata", "by=hand")
    code, out, err = detcloud("checkpoint", "upload", "files", "--trial", "1", *words)
    assert (code, err) == (0, "")
    checkpoint = json.loads(detcloud("checkpoint", "describe", out.strip(), "--json").out)
    metadata = {"data": {"version": 3}, "by": "hand", "steps_completed": 30}
    assert (checkpoint["steps_completed"], checkpoint["metadata"]) == (30, metadata)
    assert (checkpoint["trial_id"], checkpoint["uploaded_by"]) == (1, "user-1")
    assert detcloud("checkpoint", "verify", out.strip()).code == 0
    again = detcloud("checkpoint", "upload", "files", "--experiment", "2", "--json")
    assert json.loads(again.out)["experiment_id"] == 2


def test_upload_errors_name_the_cause(cluster: Cluster, detcloud: Detcloud) -> None:
    def error_of(*words: str) -> str:
        code, out, err = detcloud("checkpoint", "upload", *words)
        assert (code != 0, out) == (True, "")
        return err

    assert "experiment 1 has several trials; name one with --trial" in error_of(
        "files", "--experiment", "1"
    )
    assert "nowhere is not a directory" in error_of("nowhere", "--trial", "1")
    assert "there is no trial 9" in error_of("files", "--trial", "9")
    assert "required" in error_of("files")
    Path("files/link").symlink_to("weights.bin")
    assert "is a link or a special file" in error_of("files", "--trial", "1")
    Path("files/link").unlink()
    Path("files/metadata.json").write_text("[]")
    assert "must hold an object" in error_of("files", "--trial", "1")
    Path("files/metadata.json").write_text('{"steps_completed": "many"}')
    assert "--steps gives it" in error_of("files", "--trial", "1")
    Path("empty").mkdir()
    assert "has no files" in error_of("empty", "--trial", "1")
