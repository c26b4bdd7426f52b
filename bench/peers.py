"""Peers, each measured in a separate process: `python -m bench.peers NAME TRIALS` prints the
seconds of the trials.

The process group of a peer is killed at the end. A peer that does not start is a line in the table.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

PARAMETERS = 5
SECONDS_MAX = 180.0
MARK = "seconds:"
# Peers with trials that sleep for a second, and the number of parallel trials.
SLEEPERS = ("optuna-process-per-trial", "ray-actor-per-trial")
SLEEPER_SLOTS = 2
ON_POSTGRESQL = "optuna-on-postgresql"
SEARCHES = {"optuna": "Optuna's SuccessiveHalvingPruner", "syne-tune": "Syne Tune's ASHA"}
POSTGRESQL_VARIABLE = "DETCLOUD_BENCH_POSTGRESQL"
"""The variable with the URL of the database of Optuna on PostgreSQL."""
OPTUNA_STUDY = "sqlite:///study.db"
OPTUNA_SLEEPER = f"""
import time
import optuna
import torch

def objective(trial):
    x = trial.suggest_float("x", 0.0, 1.0)
    torch.zeros(1)
    time.sleep(1)
    return x

optuna.logging.set_verbosity(optuna.logging.ERROR)
optuna.load_study(storage={OPTUNA_STUDY!r}, study_name="sleepers").optimize(objective, n_trials=1)
"""


class PeerMeasurement(NamedTuple):
    """A peer's measurement. `rate`: trials per second, or None without a measurement. `text`: the
    table's text.
    """

    name: str
    rate: float | None
    text: str


class PeerAnswer(NamedTuple):
    """An answer of a peer of `bench.simulation_peers`, or None with a `reason`."""

    name: str
    answer: object
    reason: str


def ask_peer(peer: str, *numbers: int, seconds_max: float = 2 * SECONDS_MAX) -> PeerAnswer:
    """Run a peer's search in a separate process. Return its answer, or the reason of a failure."""
    package = peer.rpartition("-")[0]
    try:
        name = f"{SEARCHES[package]} ({version(package)})"
    except PackageNotFoundError:
        return PeerAnswer(SEARCHES[package], None, f"not measured: {package} is not installed")
    command = [sys.executable, "-m", "bench.simulation_peers", peer, *map(str, numbers)]
    try:
        output = _output(command, seconds_max)
    except subprocess.TimeoutExpired:
        return PeerAnswer(name, None, f"not measured: no end after {seconds_max:.0f} s")
    for line in output.splitlines():
        if line.startswith(MARK):
            return PeerAnswer(name, json.loads(line.removeprefix(MARK)), "")
    return PeerAnswer(name, None, _reason(output))


def measure(peer: str, trials: int, *, seconds_max: float = SECONDS_MAX) -> PeerMeasurement:
    """Run a peer's trials in a separate process. Start and imports are not counted."""
    name = _name(peer)
    try:
        output = _output([sys.executable, "-m", "bench.peers", peer, str(trials)], seconds_max)
    except subprocess.TimeoutExpired:
        return PeerMeasurement(name, None, f"not measured: no end after {seconds_max:.0f} s")
    for line in output.splitlines():
        if line.startswith(MARK):
            rate = trials / float(line.removeprefix(MARK))
            return PeerMeasurement(name, rate, f"{rate:,.3g} trials/s in {trials}")
    return PeerMeasurement(name, None, _reason(output))


def _reason(output: str) -> str:
    said = [line for line in output.splitlines() if line.strip()]
    return f"not measured: {said[-1] if said else 'it said nothing'}"


def _name(peer: str) -> str:
    package, _, how = peer.partition("-")
    if peer == ON_POSTGRESQL:
        return f"Optuna on PostgreSQL ({version(package)})"
    try:
        found = version(package)
    except PackageNotFoundError:
        found = "not installed"
    kind = {"optuna": "Optuna on SQLite", "ray": "Ray Tune"}[package]
    return f"{kind} ({', '.join(filter(None, (found, how.replace('-', ' '))))})"


def _output(command: list[str], seconds_max: float) -> str:
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            start_new_session=True,
        )
        try:
            return process.communicate(timeout=seconds_max)[0]
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.communicate()


def _optuna_on_postgresql(trials: int) -> float:
    return _optuna(trials, os.environ[POSTGRESQL_VARIABLE])


def _optuna(trials: int, storage: str = "") -> float:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=storage or f"sqlite:///{Path.cwd() / 'study.db'}",
        sampler=optuna.samplers.RandomSampler(seed=7),
    )

    def objective(trial: Any) -> float:
        values = [float(trial.suggest_float(f"p{n}", 0.0, 1.0)) for n in range(PARAMETERS)]
        return sum(values)

    started = time.perf_counter()
    study.optimize(objective, n_trials=trials)
    return time.perf_counter() - started


def _ray(trials: int, *, reuse_actors: bool = False) -> float:
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    import ray
    from ray import tune

    class Trivial(tune.Trainable):
        def setup(self, config: dict[str, float]) -> None:
            self.loss = sum(config.values())

        def step(self) -> dict[str, Any]:
            return {"loss": self.loss, "done": True}

        def reset_config(self, new_config: dict[str, float]) -> bool:
            self.setup(new_config)
            return True

    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    started = time.perf_counter()
    tune.run(
        Trivial,
        config={f"p{n}": tune.uniform(0.0, 1.0) for n in range(PARAMETERS)},
        num_samples=trials,
        reuse_actors=reuse_actors,
        storage_path=str(Path.cwd()),
        verbose=0,
    )
    seconds = time.perf_counter() - started
    ray.shutdown()
    return seconds


def _ray_reusing(trials: int) -> float:
    return _ray(trials, reuse_actors=True)


def _optuna_processes(trials: int) -> float:
    """Run a process per trial, two at a time, and return the seconds. Each process opens the study,
    trains and reports.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.create_study(storage=OPTUNA_STUDY, study_name="sleepers")
    started = time.perf_counter()
    waiting, running = trials, list[subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < SLEEPER_SLOTS:
            running.append(subprocess.Popen([sys.executable, "-c", OPTUNA_SLEEPER]))
            waiting -= 1
        time.sleep(0.005)
        failed = [process for process in running if process.poll() not in (None, 0)]
        if failed:
            raise RuntimeError(f"a trial ended with {failed[0].returncode}")
        running = [process for process in running if process.returncode is None]
    return time.perf_counter() - started


def _ray_sleepers(trials: int) -> float:
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    import ray
    from ray import tune

    def sleeper(config: dict[str, float]) -> None:
        import torch

        torch.zeros(1)
        time.sleep(1)
        tune.report({"loss": config["x"]})

    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        num_cpus=SLEEPER_SLOTS,
    )
    started = time.perf_counter()
    tune.run(
        sleeper,
        config={"x": tune.uniform(0.0, 1.0)},
        num_samples=trials,
        resources_per_trial={"cpu": 1},
        storage_path=str(Path.cwd()),
        verbose=0,
    )
    seconds = time.perf_counter() - started
    ray.shutdown()
    return seconds


PEERS: dict[str, Callable[[int], float]] = {
    "optuna": _optuna,
    ON_POSTGRESQL: _optuna_on_postgresql,
    "ray": _ray,
    "ray-reusing-actors": _ray_reusing,
    "optuna-process-per-trial": _optuna_processes,
    "ray-actor-per-trial": _ray_sleepers,
}


if __name__ == "__main__":
    print(f"{MARK}{PEERS[sys.argv[1]](int(sys.argv[2]))}", flush=True)
