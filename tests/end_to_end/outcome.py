"""The outcome of a search, in a form that allows the comparison of two runs."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from detcloud.client import Client, Trial

Metrics = Mapping[tuple[str, int], str]


@dataclass(frozen=True)
class TrialOutcome:
    """A trial; `metrics` has the report for each group and step, as JSON.

    `weights` is the SHA-256 over the tensors of the models and optimizers in the latest checkpoint.
    """

    number: int
    state: str
    hparams: str
    seed: int
    steps: int
    metric: float | None
    best_metric: float | None
    metrics: Metrics
    weights: str


@dataclass(frozen=True)
class Outcome:
    """An experiment; `contradictions` names the steps that appear twice in a group."""

    state: str
    best_metric: float | None
    trials: tuple[TrialOutcome, ...]
    contradictions: tuple[str, ...]
    restarts: int


def outcome_of(cluster: Client, experiment_id: int) -> Outcome:
    """Return the outcome from the API; download and so verify all latest checkpoints."""
    experiment = cluster.experiment(experiment_id)
    trials = sorted(experiment.trials(), key=lambda trial: int(trial.data["number"]))
    contradictions: list[str] = []
    return Outcome(
        state=experiment.state,
        best_metric=experiment.data["best_metric"],
        trials=tuple(_trial(cluster, trial, contradictions) for trial in trials),
        contradictions=tuple(contradictions),
        restarts=sum(trial.data["restarts"] for trial in trials),
    )


def differences(expected: Outcome, found: Outcome) -> list[str]:
    """Return a line for each relevant difference; restarts and the order of trials are ignored."""
    lines = [f"contradiction: {line}" for line in found.contradictions]
    for name in ("state", "best_metric"):
        lines += _differing(name, getattr(expected, name), getattr(found, name))
    lines += _differing("number of trials", len(expected.trials), len(found.trials))
    for one, other in zip(expected.trials, found.trials, strict=False):
        for field in fields(TrialOutcome):
            place = f"trial number {one.number}: {field.name}"
            was, now = getattr(one, field.name), getattr(other, field.name)
            if field.name == "metrics":
                lines += _differing_metrics(place, was, now)
            else:
                lines += _differing(place, was, now)
    return lines


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 over name, type, shape and bytes of each tensor of the state."""
    state = torch.load(folder / "state_dict.pth", map_location="cpu", weights_only=True)
    digest = hashlib.sha256()
    for kind in ("models", "optimizers"):
        for name, tensor in _tensors(state[f"{kind}_state_dict"], kind):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _trial(cluster: Client, trial: Trial, contradictions: list[str]) -> TrialOutcome:
    data = trial.data
    return TrialOutcome(
        number=data["number"],
        state=data["state"],
        hparams=json.dumps(data["hparams"], sort_keys=True),
        seed=data["seed"],
        steps=data["steps_completed"],
        metric=data["metric"],
        best_metric=data["best_metric"],
        metrics=_metrics(trial, contradictions),
        weights=_weights(cluster, data["latest_checkpoint"]),
    )


def _metrics(trial: Trial, contradictions: list[str]) -> Metrics:
    found: dict[tuple[str, int], str] = {}
    for report in trial.metrics():
        place = (report["group"], report["steps_completed"])
        value = json.dumps(report["metrics"], sort_keys=True)
        if place in found:
            where = f"trial number {trial.data['number']}, {place[0]} at {place[1]}"
            contradictions.append(f"{where}: {found[place]}, then {value}")
        found[place] = value
    return found


def _weights(cluster: Client, uuid: str | None) -> str:
    if uuid is None:
        return "no checkpoint"
    with tempfile.TemporaryDirectory() as folder:
        cluster.checkpoint(uuid).download(Path(folder) / "checkpoint")
        return weights_digest(Path(folder) / "checkpoint")


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _tensors(value[key], f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{name}.{index}")


def _differing(place: str, expected: object, found: object) -> list[str]:
    return [] if expected == found else [f"{place}: {found!r} instead of {expected!r}"]


def _differing_metrics(place: str, expected: Metrics, found: Metrics) -> list[str]:
    return [
        line
        for key in sorted({*expected, *found})
        for line in _differing(f"{place}, {key[0]} at {key[1]}", expected.get(key), found.get(key))
    ]
