"""Trial directories for tests: what the agent writes, and what the trial reported."""

import json
from pathlib import Path
from typing import Any

import pytest


def make_trial(root: Path, /, **spec: Any) -> Path:
    """A trial directory below `root` whose storage is `root/store`; fields override the spec's."""
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
    """Replaces directives.json by rename, as the agent does."""
    fresh = trial / "in" / "directives.tmp"
    fresh.write_text(json.dumps(directives))
    fresh.rename(trial / "in" / "directives.json")


def enter(trial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process the trial's: `init` finds the directory, and a code folder as its cwd."""
    code = trial / "code"
    code.mkdir(exist_ok=True)
    monkeypatch.setenv("DETCLOUD_TRIAL_DIR", str(trial))
    monkeypatch.chdir(code)


def reports(trial: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The report lines, of one kind or all but `environment`, whose moment is not fixed."""
    text = (trial / "out" / "report-0.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    if kind is None:
        return [line for line in lines if line["kind"] != "environment"]
    return [line for line in lines if line["kind"] == kind]


def kinds(trial: Path) -> list[str]:
    return [line["kind"] for line in reports(trial)]
