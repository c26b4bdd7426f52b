import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from detcloud.cli.framework import polling
from detcloud.cli.framework.polling import PollingTimes
from detcloud.cli.main import main
from tests.unit.client.fake_cluster import TOKEN, FakeCluster
from tests.unit.client.fake_server import serve_cluster


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


Detcloud = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def own_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM, which a command may replace in this process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("DETCLOUD_URL", "DETCLOUD_TOKEN", "DETCLOUD_HOME", "DETCLOUD_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with serve_cluster(FakeCluster()) as cluster:
        monkeypatch.setenv("DETCLOUD_URL", cluster.url)
        monkeypatch.setenv("DETCLOUD_TOKEN", TOKEN)
        monkeypatch.setattr(polling, "TIMES", PollingTimes(0.01, 1.0, 0.01, 0.01))
        yield cluster


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat failed requests at once."""
    monkeypatch.setattr("detcloud.shared.http.RETRY_FIRST_SECONDS", 0.001)


@pytest.fixture
def detcloud(capfd: pytest.CaptureFixture[str]) -> Detcloud:
    """Return a function that runs a command in this process and returns a CommandResult."""

    def run(*words: str) -> CommandResult:
        try:
            code = main(words)
        except SystemExit as ending:
            code = int(ending.code or 0)
        out, err = capfd.readouterr()
        return CommandResult(code, out, err)

    return run


@pytest.fixture
def ended_cluster(fake: FakeCluster, detcloud: Detcloud) -> FakeCluster:
    """Add experiment 1 with trials 1 and 2 to the fake cluster, and train to COMPLETED."""
    fake.add_experiment({"name": "digits"}, {})
    assert detcloud("wait", "1", "--polling-interval", "0.001").code == 0
    return fake


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model_def.py").write_text("print('hello')\n")
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("name: digits\nsearcher:\n  name: single\n")
    return path
