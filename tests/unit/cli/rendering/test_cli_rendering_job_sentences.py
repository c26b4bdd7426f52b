"""Sentences about jobs of a queue."""

import json
from pathlib import Path
from typing import Any

import pytest

from detcloud.cli.rendering.job_sentences import job_sentence

# The web page's tests read the same examples, at the same time.
EXAMPLES = Path(__file__).parents[4] / "web" / "src" / "views" / "jobs" / "job_sentences.json"
NOW_MS = 1_000_000


@pytest.mark.parametrize(
    "example", json.loads(EXAMPLES.read_text()), ids=lambda example: example["case"]
)
def test_command_line_and_page_have_the_same_sentences(example: dict[str, Any]) -> None:
    assert job_sentence(example["job"], NOW_MS) == example["sentence"]


def test_jobs_of_older_clusters_have_sentences() -> None:
    job = {
        "state": "STATE_QUEUED",
        "waits": "waits: there is no agent",
        "expected_start_ms": None,
        "allocated_slots": 0,
        "requested_slots": 1,
    }
    assert job_sentence(job, NOW_MS) == "Waits: there is no agent."
    assert job_sentence({**job, "state": "STATE_SCHEDULED", "waits": ""}, NOW_MS) == (
        "Runs without slots."
    )
