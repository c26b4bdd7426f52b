"""Deleting a part of a checkpoint by the command line, and reading the rest."""

from pathlib import Path

import pytest

from control_plane.access.principals import Role
from detcloud.cli.main import main
from detcloud.client import Client
from detcloud.compatibility.checkpoints import Checkpoint
from detcloud.shared.file_patterns import PATTERN_LENGTH_MAX, PATTERNS_MAX
from detcloud.shared.http import ApiError
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, build_cluster
from tests.unit.api.test_api_collection import collect
from tests.unit.queries.test_queries_trials import checkpoint

UUID = "00000011-0000-4000-8000-000000000000"
NAMES = ("weights.pt", "optimizer/a.pt", "optimizer/deep/b.pt", "code/model.py")


def test_rest_of_a_partly_deleted_checkpoint_is_downloaded_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = build_cluster(tmp_path)
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    checkpoint(cluster, agent, 1, UUID, 2, NAMES)
    checkpoint(cluster, agent, 1, UUID.replace("11", "12", 1), 4)

    def run(*words: str) -> tuple[int, str]:
        code = main(words)
        out, err = capfd.readouterr()
        return code, out + err

    with serve_app(cluster.app) as url:
        monkeypatch.setenv("DETCLOUD_URL", url)
        monkeypatch.setenv("DETCLOUD_TOKEN", TOKENS[Role.USER])
        code, text = run("checkpoint", "rm", UUID[:8], "--glob", "optimizer/**", "--dry-run")
        assert code == 0
        assert "2 files" in text
        code, text = run("checkpoint", "rm", UUID[:8], "--glob", "optimizer/**")
        assert code == 1
        assert "Delete 2 files of 1 checkpoint, 24 B: confirm with --yes" in text
        code, text = run("checkpoint", "rm", UUID[:8], "--glob", "*.bin", "--yes")
        assert code == 3
        assert "(4 files) matches" in text
        longest = ["\U0001f600" * PATTERN_LENGTH_MAX] * PATTERNS_MAX
        with (
            Client(url, TOKENS[Role.USER]) as client,
            pytest.raises(ApiError, match=r"\(4 files\) matches"),
        ):
            client.checkpoint(UUID).delete(longest)
        code, text = run("checkpoint", "rm", UUID[:8], "--glob", "optimizer/**", "--yes")
        assert (code, text) == (0, f"checkpoint {UUID} is partly deleted\n")
        assert "Deleted files  optimizer/**" in run("checkpoint", "describe", UUID)[1]
        collect(cluster)
        for mode in ("master", "direct"):
            folder = tmp_path / mode
            with Client(url, TOKENS[Role.USER]) as client:
                client.checkpoint(UUID).download(folder, mode=mode)
            left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
            assert left == ["code/model.py", "weights.pt"]
        assert run("checkpoint", "verify", UUID)[0] == 0
        with Client(url, TOKENS[Role.USER]) as client:
            theirs = Checkpoint(client.checkpoint(UUID))
            theirs.remove_files([])
            assert theirs.deleted_patterns == ["optimizer/**"]
            theirs.remove_files(["code"])
            theirs.add_metadata({"kept": "weights", "by": "ada"})
            theirs.remove_metadata(["by", "none"])
        described = cluster.get(f"/checkpoints/{UUID}").json
        assert described["deleted_patterns"] == ["optimizer/**", "code"]
        assert (described["files"], described["metadata"]) == (1, {"note": "n", "kept": "weights"})
        code, text = run("checkpoint", "pin", UUID)
        assert code == 3
        assert "was partly deleted, and cannot be pinned" in text
        assert run("checkpoint", "rm", UUID, "--yes") == (
            0,
            f"checkpoint {UUID} is being deleted\n",
        )
