"""Sentences about jobs of a queue. The web page has the same sentences.

`web/src/views/jobs/job_sentence.ts` is the page's implementation, and the tests of both read the
same examples.
"""

from __future__ import annotations

from detcloud.cli.rendering.table import Item
from detcloud.shared.plurals import count_text

_NO_REASON = "the scheduler has not looked at this job yet"


def job_sentence(job: Item, now_ms: int) -> str:
    """Return a sentence about the slots of a job, or about the wait and the expected start.

    Return "" for a job that neither runs nor waits, such as a paused job.

    Args:
        job: the fields of the cluster's answer.
        now_ms: the present time in epoch ms.
    """
    condition = job.get("condition") or _condition_of_older_cluster(job)
    reason = str(job["waits"]).removeprefix("waits: ")
    if condition == "running":
        runs = _run_text(job["allocated_slots"], job["requested_slots"])
        if not reason:
            return runs
        return f"{runs} The next trial waits: {reason}.{_start_text(job, now_ms)}"
    if condition != "queued" and not reason:
        return ""
    since_ms = job.get("waits_since_ms")
    length = "" if since_ms is None else f" for {length_text(now_ms - since_ms)}"
    return f"Waits{length}: {reason or _NO_REASON}.{_start_text(job, now_ms)}"


def _condition_of_older_cluster(job: Item) -> str:
    """Return the word for the state of a job from a cluster that sends no `condition`."""
    return "running" if job["state"] == "STATE_SCHEDULED" else "queued"


def _run_text(held: int, needed: int) -> str:
    """Return a sentence about the held slots and the needed slots of a running job."""
    if held == 0:
        return "Runs without slots."
    part = f"{held} of " if held < needed else ""
    return f"Runs on {part}{count_text(needed, 'slot')}."


def _start_text(job: Item, now_ms: int) -> str:
    """Return a sentence about the expected start, after a space. Return "" for an unknown start."""
    start_ms = job["expected_start_ms"]
    if start_ms is None:
        return ""
    if start_ms - now_ms < 500:
        return " Start expected now."
    return f" Start expected in {length_text(start_ms - now_ms)}."


def length_text(time_ms: int) -> str:
    """Return a length of time in the two largest units: `20 s`, `3 min 5 s` or `2 h 5 min`.

    A negative length counts as 0.
    """
    seconds = max(0, (time_ms + 500) // 1000)
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
