"""The examples of docs/python that need a cluster run on a local cluster."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples_of_docs import EXAMPLES
from tests.integration.embedded_cluster import EmbeddedCluster
from tests.patience import PROCESS_SECONDS_MAX

pytestmark = pytest.mark.end_to_end

DETERMINED = ("-m", "detcloud.compatibility")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    started = EmbeddedCluster(tmp_path_factory.mktemp("cluster"))
    try:
        started.start()
        yield started
    finally:
        started.end()


@pytest.mark.parametrize(
    ("script", "runner"),
    [
        ("client.py", ()),
        ("client_experiments.py", ()),
        ("client_objects.py", ()),
        ("searcher.py", ()),
        ("errors.py", ()),
        ("determined.py", DETERMINED),
    ],
)
def test_examples_run_on_a_cluster(
    cluster: EmbeddedCluster, tmp_path: Path, script: str, runner: tuple[str, ...]
) -> None:
    shutil.copytree(EXAMPLES / "model", tmp_path / "model")
    for path in EXAMPLES.glob("*.yaml"):
        shutil.copy(path, tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", *runner, str(EXAMPLES / script)],
        cwd=tmp_path,
        env={
            **cluster.environment(),
            "HOME": str(tmp_path),
            "DETCLOUD_URL": cluster.record()["url"],
            "DETCLOUD_TOKEN": (cluster.home / "token").read_text().strip(),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout
