"""A real cluster with trials whose logs match log policies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.client import Client, Experiment, Trial
from tests.integration.embedded_cluster import EmbeddedCluster, environment
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end

OUT_OF_MEMORY = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
# The program prints the line without a newline and fails at once.
TRAIN = """
import sys

print("begins", flush=True)
print(sys.argv[1], end="", flush=True)
sys.exit(1)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    one = EmbeddedCluster(tmp_path_factory.mktemp("policies") / "home")
    one.start()
    yield one
    one.end()


@pytest.fixture
def client(cluster: EmbeddedCluster) -> Client:
    return cluster.client()


def run(client: Client, folder: Path, line: str, *policies: dict[str, Any]) -> Experiment:
    """Run a trial that prints the line and fails, with one restart. Return the experiment."""
    model = folder / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN)
    experiment = client.create_experiment(
        {
            "name": "policies",
            "entrypoint": ["python", "train.py", line],
            "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
            "max_restarts": 1,
            "log_policies": list(policies),
        },
        model,
    )

    def has_ended() -> bool:
        experiment.refresh()
        return experiment.has_ended

    wait_until(has_ended)
    return experiment


def only_trial(experiment: Experiment) -> Trial:
    [trial] = experiment.trials()
    return trial


def test_cancel_retries_ends_the_trial_with_the_line(client: Client, tmp_path: Path) -> None:
    policy = {"name": "CUDA OOM", "pattern": ".*out of memory.*", "action": "cancel_retries"}
    experiment = run(client, tmp_path, OUT_OF_MEMORY, policy)
    trial = only_trial(experiment)
    assert (trial.state, trial.restarts, trial.signal) == ("ERROR", 1, "CUDA OOM")
    reason = f"log policy CUDA OOM matched: {OUT_OF_MEMORY}"
    assert trial.retries_canceled == reason
    assert trial.message is not None
    assert trial.message.startswith(f"no restart: {reason}\n")
    [match] = trial.log_matches
    assert (match["line"], match["agent_id"], match["epoch"]) == (OUT_OF_MEMORY, "local", 1)
    assert experiment.data["signal"] == "CUDA OOM"


def test_default_policies_only_signal(client: Client, tmp_path: Path) -> None:
    trial = only_trial(run(client, tmp_path, OUT_OF_MEMORY))
    assert (trial.state, trial.restarts, trial.signal) == ("ERROR", 2, "CUDA OOM")
    assert trial.retries_canceled == ""
    assert [match["epoch"] for match in trial.log_matches] == [1, 2]


def test_name_without_pattern_switches_a_default_off(client: Client, tmp_path: Path) -> None:
    trial = only_trial(run(client, tmp_path, OUT_OF_MEMORY, {"name": "CUDA OOM"}))
    assert (trial.signal, trial.log_matches) == ("", [])


@pytest.fixture
def second_agent(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[None]:
    """Run a further agent with the name `second` in the cluster's pool."""
    command = [sys.executable, "-m", "detcloud.agent", "--url", cluster.record()["url"]]
    command += ["--token-file", str(cluster.home / "agent.token"), "--name", "second"]
    command += ["--pool", "default", "--work-dir", str(tmp_path / "second"), "--slots", "2"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    client = cluster.client()
    wait_until(lambda: any(agent.id == "second" for agent in client.agents()))
    yield
    process.terminate()
    process.wait(PROCESS_SECONDS_MAX)


@pytest.mark.usefixtures("second_agent")
def test_excluded_machine_runs_the_trial_only_once(client: Client, tmp_path: Path) -> None:
    policy = {"name": "ECC", "pattern": "ECC error", "action": "exclude_node"}
    trial = only_trial(run(client, tmp_path, "uncorrectable ECC error", policy))
    assert trial.restarts == 2
    agents = [match["agent_id"] for match in trial.log_matches if match["policy"] == "ECC"]
    # The first run excludes one of the two machines, and the second run the other.
    assert sorted(agents) == ["local", "second"]
    assert sorted(trial.excluded_agents) == ["local", "second"]
