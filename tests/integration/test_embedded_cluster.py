"""A whole cluster in a folder, with real processes, through the API."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.client import Experiment
from detcloud.shared.processes import pss_bytes, read_process
from tests.integration.embedded_cluster import EmbeddedCluster, config, environment, model_dir
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end

PSS_BYTES_MAX = 150 * 1024 * 1024


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    one = EmbeddedCluster(tmp_path / "home")
    yield one
    one.end()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Yield a running cluster without work, for tests that change nothing."""
    one = EmbeddedCluster(tmp_path_factory.mktemp("quiet") / "home")
    one.start()
    yield one
    one.end()


def has_ended(experiment: Experiment) -> bool:
    experiment.refresh()
    return experiment.has_ended


@pytest.mark.nightly
def test_experiment_runs_to_completion(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    client = cluster.start()
    experiment = client.create_experiment(config(), model_dir(tmp_path / "model"))
    assert (experiment.id, experiment.state) == (1, "ACTIVE")
    wait_until(lambda: has_ended(experiment))
    assert experiment.state == "COMPLETED"
    assert experiment.data["trials"] == {
        "requested": 4,
        "running": 0,
        "completed": 4,
        "errored": 0,
    }
    trials = list(experiment.trials())
    assert [trial.data["steps_completed"] for trial in trials] == [4] * 4
    # The metric is the square of x.
    losses = {trial.id: trial.data["hparams"]["x"] ** 2 for trial in trials}
    best = min(losses, key=lambda trial_id: losses[trial_id])
    assert experiment.data["best_trial_id"] == best
    assert experiment.data["best_metric"] == pytest.approx(losses[best])
    assert experiment.data["progress"] == 1.0

    first = trials[0]
    reports = list(first.metrics("training"))
    assert [report["steps_completed"] for report in reports] == [1, 2, 3, 4]
    log = first.log_chunk()
    lines = log["text"].splitlines()
    assert lines[0] == f"trial {first.id} starts at 0"
    assert lines[-1] == f"trial {first.id} stops at 4"
    assert log["complete"]
    [checkpoint] = first.checkpoints()
    client.checkpoint(checkpoint.uuid[:8]).download(tmp_path / "fetched")
    assert json.loads((tmp_path / "fetched/state.json").read_text()) == 4
    assert len(list(experiment.checkpoints())) == 4

    assert {one["state"] for one in checkpoint.verify()} == {"OK"}
    [stored] = cluster.home.rglob(f"{checkpoint.uuid}/state.json")
    stored.write_text("5")
    assert {one["path"]: one["state"] for one in checkpoint.verify()}["state.json"] == "DAMAGED"
    stored.unlink()
    assert {one["path"]: one["state"] for one in checkpoint.verify()}["state.json"] == "MISSING"


def test_restarted_server_recovers_experiments(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    client = cluster.start()
    experiment = client.create_experiment(config(0.35, 10, trials=2), model_dir(tmp_path / "model"))
    wait_until(lambda: any(True for trial in experiment.trials(1) for _ in trial.metrics()))
    agent_pid = cluster.record()["agent_pid"]
    url = client.url
    cluster.kill()
    client = cluster.start()
    assert client.url == url
    assert read_process(agent_pid) is None
    experiment = client.experiment(experiment.id)
    wait_until(lambda: has_ended(experiment))
    trials = list(experiment.trials())
    assert experiment.state == "COMPLETED"
    assert [trial.data["restarts"] for trial in trials] == [0, 0]
    # The trials continued without a server: each trained once, from its first batch.
    assert trials[0].log_chunk()["text"].count("starts at") == 1
    reports = list(trials[0].metrics("training"))
    assert [report["steps_completed"] for report in reports] == list(range(1, 11))


def test_stopped_server_preempts_trials_and_the_next_server_resumes(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    client = cluster.start()
    experiment = client.create_experiment(config(0.1, 35, trials=1), model_dir(tmp_path / "model"))
    [trial] = wait_until(lambda: list(experiment.trials()))
    wait_until(lambda: list(trial.metrics()))
    agent_pid = cluster.record()["agent_pid"]
    assert cluster.stop() == 0
    assert read_process(agent_pid) is None
    assert not (cluster.home / "server.json").exists()
    experiment = cluster.start().experiment(experiment.id)
    wait_until(lambda: has_ended(experiment))
    assert experiment.state == "COMPLETED"
    [trial] = experiment.trials()
    assert trial.data["restarts"] == 0
    starts = [line for line in trial.log_chunk()["text"].splitlines() if "starts" in line]
    assert len(starts) == 2
    assert not starts[1].endswith("starts at 0")


def test_killed_agent_is_replaced_and_trials_continue(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    client = cluster.start()
    experiment = client.create_experiment(config(0.1, 35, trials=2), model_dir(tmp_path / "model"))
    wait_until(lambda: any(True for trial in experiment.trials(1) for _ in trial.metrics()))
    former = cluster.record()["agent_pid"]
    process = subprocess.Popen(["kill", "-9", str(former)])
    assert process.wait() == 0
    wait_until(lambda: cluster.record()["agent_pid"] != former)
    wait_until(lambda: has_ended(experiment))
    assert experiment.state == "COMPLETED"
    assert [trial.data["restarts"] for trial in experiment.trials()] == [0, 0]


@pytest.mark.nightly
def test_pause_frees_the_slots_and_activate_resumes(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    client = cluster.start()
    experiment = client.create_experiment(config(0.1, 35, trials=2), model_dir(tmp_path / "model"))
    wait_until(lambda: any(True for trial in experiment.trials(1) for _ in trial.metrics()))
    experiment.pause()
    wait_until(lambda: client.overview()["resource_pools"][0]["free_slots"] == 2)
    experiment.activate()
    wait_until(lambda: has_ended(experiment))
    assert experiment.state == "COMPLETED"


def test_log_line_interrupts_a_held_call(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    client = cluster.start()
    folder = tmp_path / "model"
    folder.mkdir()
    program = "import time\nprint(time.time(), flush=True)\ntime.sleep(600)\n"
    (folder / "say.py").write_text(program)
    request = config(trials=1) | {"entrypoint": ["python", "say.py"]}
    experiment = client.create_experiment(request, folder)
    [trial] = wait_until(lambda: list(experiment.trials()))
    said_at = float(wait_until(lambda: trial.log_chunk()["text"]))
    # The line is sent after 1.5 s; a held call ends up to 10 s after its beginning.
    assert time.time() - said_at < 8.0
    experiment.kill()
    wait_until(lambda: has_ended(experiment))
    assert experiment.state == "CANCELED"


def test_second_server_on_a_folder_is_refused_in_a_line(quiet: EmbeddedCluster) -> None:
    second = subprocess.run(
        quiet.command(),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    assert second.returncode == 1
    assert second.stderr == f"detcloud server: a server runs on {quiet.home} already\n"


# Open routes, and routes with a token in the body, check the request; no request of this test is
# valid.
WITHOUT_TOKEN = {
    "/api/v1/health": 200,
    # The installer is public code.
    "/api/v1/agent-installer": 200,
    "/api/v1/objects/{key}": 422,
    "/api/v1/instances/{instance_id}/agent-code": 422,
    "/api/v1/instances/{instance_id}/boot-report": 422,
    "/api/v1/instances/{instance_id}/identity": 422,
    # A code or a token in the body opens a session.
    "/api/v1/sessions": 422,
    "/api/v1/sign-in-codes/token": 422,
}


def test_every_route_but_health_needs_a_token(quiet: EmbeddedCluster) -> None:
    client = quiet.client()
    paths: dict[str, dict[str, Any]] = client.get("/openapi.json")["paths"]
    count = 0
    for path, methods in paths.items():
        target = path.replace("{experiment_id}", "1").replace("{trial_id}", "1")
        for method in methods:
            status = _status(f"{client.url}{target}", method.upper())
            assert status == WITHOUT_TOKEN.get(path, 401), (method, path)
            count += 1
    assert count > 20


def test_other_users_cannot_read_the_folder(quiet: EmbeddedCluster) -> None:
    assert quiet.home.stat().st_mode & 0o777 == 0o700
    for name in ("token", "agent.token", "signing.key", "state.db", "server.json", "server.log"):
        assert (quiet.home / name).stat().st_mode & 0o777 == 0o600, name
    token = (quiet.home / "token").read_text().strip()
    assert token not in (quiet.home / "server.log").read_text()


def test_idle_cluster_is_small_and_quiet(quiet: EmbeddedCluster) -> None:
    client = quiet.client()
    wait_until(lambda: client.overview()["resource_pools"][0]["agents"] == 1)
    pids = [quiet.record()["pid"], quiet.record()["agent_pid"]]
    sizes = [pss_bytes(pid) or 0 for pid in pids]
    assert all(sizes)
    assert sum(sizes) < PSS_BYTES_MAX

    def is_quiet() -> bool:
        before = sum(_cpu_ticks(pid) for pid in pids)
        time.sleep(3)
        # 3 s are 300 ticks: under 5 % of a core.
        return sum(_cpu_ticks(pid) for pid in pids) - before < 15

    # After the processes have started.
    wait_until(is_quiet)


def _status(url: str, method: str) -> int:
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
