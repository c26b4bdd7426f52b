from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.fake_server import serve_cluster


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with serve_cluster(FakeCluster()) as cluster:
        yield cluster


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model_def.py").write_text("print('hello')\n")
    return folder


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("DETCLOUD_URL", "DETCLOUD_TOKEN", "DETCLOUD_HOME", "DETCLOUD_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return home
