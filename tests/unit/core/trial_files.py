"""Trial directories for tests: written like the agent, with readers of the trial's reports."""

import json
from pathlib import Path
from typing import Any

import pytest


def make_trial(root: Path, /, **spec: Any) -> Path:
    """Create a trial directory below `root` with storage in `root/store`; return its path.

    `spec` overrides fields of spec.json.
    """
    trial = root / "trial"
    (trial / "in").mkdir(parents=True, exist_ok=True)
    document = {
        "version": 1,
        "experiment_id": 3,
        "trial_id": 4,
        "allocation_id": "4.1",
        "epoch": 1,
        "trial_seed": 17,
        "storage": {"type": "directory", "path": str(root / "store")},
        **spec,
    }
    (trial / "in" / "spec.json").write_text(json.dumps(document))
    return trial


def direct(trial: Path, **directives: Any) -> None:
    """Replace directives.json by a rename, like the agent."""
    fresh = trial / "in" / "directives.tmp"
    fresh.write_text(json.dumps(directives))
    fresh.rename(trial / "in" / "directives.json")


def enter(trial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the trial's: set DETCLOUD_TRIAL_DIR, and change into a new code folder."""
    code = trial / "code"
    code.mkdir(exist_ok=True)
    monkeypatch.setenv("DETCLOUD_TRIAL_DIR", str(trial))
    monkeypatch.chdir(code)


def reports(trial: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return rank 0's report lines of `kind`, or all lines except `environment`.

    The line `environment` is left out because its position varies.
    """
    text = (trial / "out" / "report-0.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    if kind is None:
        return [line for line in lines if line["kind"] != "environment"]
    return [line for line in lines if line["kind"] == kind]


def kinds(trial: Path) -> list[str]:
    return [line["kind"] for line in reports(trial)]
