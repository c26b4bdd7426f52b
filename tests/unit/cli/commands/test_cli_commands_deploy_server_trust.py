"""`detcloud deploy trust local`, with a substitute for the child process that prints scripts."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

SCRIPT = "#!/bin/bash\n"


class Child:
    """Substitute for `python -m infra.server_trust`, which records the options."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.out, self.err = json.dumps({"commands": SCRIPT}), ""

    def __call__(self, module: str, words: Sequence[str]) -> subprocess.CompletedProcess[Any]:
        assert module == "infra.server_trust"
        self.words = list(words)
        return subprocess.CompletedProcess([], 0, self.out, self.err)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    substitute = Child()
    monkeypatch.setattr("detcloud.cli.commands.deploy_server_trust.run_module", substitute)
    return substitute


def test_script_names_the_id_of_the_running_cluster(
    fake: FakeCluster, detcloud: Detcloud, child: Child
) -> None:
    assert detcloud("deploy", "trust", "local", "--clouds", "clouds.yaml").out == SCRIPT
    assert child.words == ["--clouds=clouds.yaml", "--cluster-id=c"]
    words = ("--clouds", "clouds.yaml", "--config", "cluster.yaml", "--remove")
    assert detcloud("deploy", "trust", "local", *words).code == 0
    assert child.words[2:] == ["--config=cluster.yaml", "--remove"]


def test_problems_and_missing_packages_are_errors(
    fake: FakeCluster, detcloud: Detcloud, child: Child
) -> None:
    child.out = json.dumps({"error": "clouds.yaml:1: url: is required"})
    done = detcloud("deploy", "trust", "local", "--clouds", "clouds.yaml")
    assert (done.code, done.err) == (1, "error: clouds.yaml:1: url: is required\n")
    child.out, child.err = "", "ModuleNotFoundError: No module named 'pulumi_aws'\n"
    done = detcloud("deploy", "trust", "local", "--clouds", "clouds.yaml")
    assert done.code == 1
    assert "pip install 'detcloud[infra]': ModuleNotFoundError" in done.err
