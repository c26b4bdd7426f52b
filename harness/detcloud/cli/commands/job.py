"""`detcloud job`: shows the queue of a resource pool, and changes jobs."""

from __future__ import annotations

import re
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from detcloud.cli.framework.argument_types import parse_priority, parse_weight
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_paging_options, fetch_limit, skip_offset
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.job_sentences import job_sentence
from detcloud.cli.rendering.output import add_output_options, print_items, print_value
from detcloud.cli.rendering.table import Column, Item, cell_text, field_column
from detcloud.client.job import JobChange

LIST_LIMIT = 100
OPERATIONS = ("priority", "weight", "resource-pool", "ahead-of", "behind-of")
_OPERATION = re.compile(r"([^.=]+)\.([^.=]+)=(.+)", re.DOTALL)


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the options of `list_jobs`: `--resource-pool`, `--reverse`, `--det` and the output form
    (`--json`, `--yaml` or `--csv`).

    Also add the paging options `--limit`, by default LIST_LIMIT, `--offset` and `--pages`.
    `--table` has no effect.
    """
    parser.add_argument(
        "-p",
        "--resource-pool",
        metavar="POOL",
        help="the pool of the queue (default: the default compute pool)",
    )
    add_paging_options(parser, LIST_LIMIT)
    parser.add_argument("--reverse", action="store_true", help="reverse the order")
    parser.add_argument("--table", action="store_true", help="print a table, which is the default")
    parser.add_argument(
        "--det",
        action="store_true",
        help="show types and states as Determined does, such as STATE_QUEUED",
    )
    add_output_options(parser)


def list_jobs(arguments: Namespace) -> int:
    """Print the queue of a resource pool as text, CSV, JSON or YAML, and return 0. An empty queue
    gives only the titles, or `[]`.

    The default is the default compute pool. At most LIST_LIMIT jobs are printed unless `--limit` or
    `--pages` is given, and `--offset` skips the first. `--reverse` reverses the order before the
    limit. With `--det`, and in CSV, types and states have Determined's names, and the expected
    start has a column of its own. Otherwise a sentence of each job has the reason and length of its
    wait and the expected start. JSON and YAML always have all fields.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request, for example for
            an unknown pool.
    """
    jobs = connect(arguments).jobs(
        arguments.resource_pool, reverse=arguments.reverse, limit=fetch_limit(arguments)
    )
    items = [job.data for job in skip_offset(jobs, arguments)]
    # Scripts read CSV, whose names must therefore never change.
    in_original_form = arguments.det or arguments.form == "csv"
    now_ms = time.time_ns() // 1_000_000
    print_items(_columns(items, in_original_form, now_ms), items, arguments)
    return 0


def add_update_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `update_job`: JOB, stored as the text `job_id`, exactly one of the
    options for OPERATIONS, and the output form (`--json` or `--yaml`).
    """
    parser.add_argument(
        "job_id",
        metavar="JOB",
        help="the job's id, a unique prefix of the id, or the experiment's id",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "-p", "--priority", type=parse_priority, metavar="N", help="1 to 99, 1 being the first"
    )
    which.add_argument(
        "-w", "--weight", type=parse_weight, metavar="X", help="the weight under fair share"
    )
    which.add_argument("--resource-pool", metavar="POOL", help="move the job to this pool")
    which.add_argument("--ahead-of", metavar="JOB", help="move the job directly ahead of this job")
    which.add_argument("--behind-of", metavar="JOB", help="move the job directly behind this job")
    add_output_options(parser, csv=False)


def update_job(arguments: Namespace) -> int:
    """Apply the change of the options to a job, print a sentence about the job, and return 0. With
    `--json` or `--yaml`, print the job's fields.

    The job is named by its id, a prefix of the id, or the id of its experiment.

    Raises:
        DetcloudError: no cluster is available, the job or the other job does not exist, or the
            cluster refuses, for example a priority outside a priority pool.
    """
    job = connect(arguments).job(arguments.job_id)
    values = {name: getattr(arguments, name.replace("-", "_")) for name in OPERATIONS}
    name, value = next((name, value) for name, value in values.items() if value is not None)
    job.change(_job_change(name, value))
    if arguments.form != "text":
        print_value(job.data, arguments.form)
    else:
        print(_change_text(job.data, name, value))
    return 0


def add_update_batch_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `update_jobs`: JOB.OPERATION=VALUE, repeatable, stored as a list of
    results of `parse_operation`, and the output form (`--json`, `--yaml` or `--csv`).
    """
    parser.add_argument(
        "operations",
        nargs="+",
        type=parse_operation,
        metavar="JOB.OPERATION=VALUE",
        help="such as 73853c5c.priority=1; operations are " + ", ".join(OPERATIONS),
    )
    add_output_options(parser)


def update_jobs(arguments: Namespace) -> int:
    """Apply all operations in order, print a sentence for each operation, and return 0. A failed
    operation does not prevent later operations.

    With `--json`, `--yaml` or `--csv`, print the jobs. Nothing is printed if an operation failed.

    Raises:
        ApiError: an operation failed, after all operations were tried. If a job belongs to another
            user, no operation was applied.
        DetcloudError: no cluster is available, or the cluster does not answer.
    """
    jobs = connect(arguments).update_jobs(arguments.operations)
    items = [job.data for job in jobs]
    if arguments.form != "text":
        print_items(_columns(items, in_original_form=True, now_ms=0), items, arguments)
        return 0
    for item, change in zip(items, arguments.operations, strict=True):
        name, value = next((name, value) for name, value in change.items() if name != "job_id")
        print(_change_text(item, name.replace("_", "-"), value))
    return 0


def parse_operation(text: str) -> JobChange:
    """Parse an operation of a batch, for example `73853c5c.priority=1`, into a request with
    `job_id` and the operation's field.

    The operation may have underscores for hyphens. The job and values other than priorities and
    weights are not checked.

    Raises:
        ArgumentTypeError: the text has another form, an unknown operation, or a priority or weight
            that is not a number.
    """
    match = _OPERATION.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(
            f"invalid format {text!r}; expected JOB.OPERATION=VALUE, such as 73853c5c.priority=1"
        )
    job_id, typed, value = match.groups()
    name = typed.replace("_", "-")
    if name not in OPERATIONS:
        raise ArgumentTypeError(
            f"invalid operation {typed!r}; expected one of {', '.join(OPERATIONS)}"
        )
    return {"job_id": job_id, **_job_change(name, _TYPES.get(name, str)(value))}


def _job_change(name: str, value: Any) -> JobChange:
    """Return the request field for an operation of OPERATIONS. Hyphens of the name become
    underscores, and the value is unchanged.
    """
    change: Any = {name.replace("-", "_"): value}
    return cast(JobChange, change)


def _columns(items: Sequence[Item], in_original_form: bool, now_ms: int) -> tuple[Column, ...]:
    """Return the columns of a queue: with weights for a fair-share pool, otherwise with priorities.

    The first job decides. An empty queue has priorities. The two columns for preferred pools, pools
    and the reason of a move, exist only if a job has preferred pools.

    Args:
        in_original_form: whether types and states have Determined's names, such as TYPE_EXPERIMENT,
            and waits the columns Expected start and Waits. Otherwise the names are for example
            `experiment` and `queued`, and the column Waits has sentences.
        now_ms: the time of the sentences, in epoch ms.
    """

    def word_column(title: str, name: str, word: str, drop_rank: int = 0) -> Column:
        # Clusters of earlier versions send neither word.
        shown = name if in_original_form or (items and word not in items[0]) else word
        return field_column(title, shown, drop_rank)

    is_fair_share = bool(items) and items[0]["scheduler"] == "fair_share"
    rank = (
        field_column("Weight", "weight") if is_fair_share else field_column("Priority", "priority")
    )
    return (
        field_column("#", "jobs_ahead"),
        Column("ID", lambda job: job["job_id"][:8]),
        word_column("Type", "type", "kind", drop_rank=3),
        field_column("Job Name", "name"),
        rank,
        Column("Submitted", lambda job: _queue_time_text(job["submitted_ms"]), drop_rank=4),
        Column(
            "Slots (acquired/needed)",
            lambda job: f"{job['allocated_slots']}/{job['requested_slots']}",
        ),
        word_column("Status", "state", "condition"),
        field_column("User", "user", drop_rank=2),
        field_column("Experiment", "experiment_id", drop_rank=1),
        *_wait_columns(in_original_form, now_ms),
        *_pool_columns(items),
    )


def _wait_columns(in_original_form: bool, now_ms: int) -> tuple[Column, ...]:
    """Return the columns about the waits of jobs: a sentence, or in the original form the expected
    start and the reason.
    """
    if not in_original_form:
        return (Column("Waits", lambda job: job_sentence(job, now_ms) or None),)
    return (
        Column(
            "Expected start", lambda job: _queue_time_text(job["expected_start_ms"]), drop_rank=5
        ),
        Column("Waits", _wait_text),
    )


def _wait_text(job: Item) -> str | None:
    """Return why a job waits, with the start of the wait if the job has preferred pools. Return
    None for a job that does not wait.
    """
    why = str(job["waits"]).removeprefix("waits: ")
    since = job.get("waits_since_ms")
    if not why or since is None or not job.get("preferred_pools"):
        return why or None
    return f"{why} (since {_queue_time_text(since)})"


def _pool_columns(items: Sequence[Item]) -> tuple[Column, ...]:
    """Return the columns Pools and Move reason. Empty if no job has preferred pools. A job without
    preferred pools or moves has None there.
    """
    if not any(job.get("preferred_pools") for job in items):
        return ()
    return (
        Column(
            "Pools", lambda job: ", ".join(job.get("preferred_pools") or []) or None, drop_rank=6
        ),
        Column("Move reason", lambda job: job.get("pool_move_reason") or None, 7),
    )


def _queue_time_text(time_ms: int | None) -> str | None:
    """Return a time of epoch milliseconds as `2026-11-30 12:00:00`, in UTC without the zone, as in
    earlier versions. Return None for None.
    """
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _change_text(job: Item, operation: str, value: object) -> str:
    """Return a sentence about a job after an operation: the new place, pool, priority or weight. A
    job that was moved ahead of or behind itself stays in its place, and the sentence says so.

    Args:
        job: the job's fields after the operation.
        operation: an operation of OPERATIONS.
        value: the value of the operation, such as the other job of `ahead-of`.
    """
    name = f"job {job['job_id'][:8]} ({cell_text(job['name'])})"
    if operation in ("ahead-of", "behind-of"):
        place = "" if job["jobs_ahead"] is None else f" at place {job['jobs_ahead']}"
        if _is_named(job, str(value)):
            return (
                f"{name} stays{place}: a job cannot be moved {operation.replace('-', ' ')} itself"
            )
        return f"{name} is{place} in the queue of pool {job['resource_pool']}"
    if operation == "resource-pool":
        return f"{name} is in pool {job['resource_pool']}"
    return f"{name} has {operation} {cell_text(job[operation])}"


def _is_named(job: Item, text: str) -> bool:
    """Return whether a text is the id of the job's experiment or a prefix of the job's id. True for
    an empty text.
    """
    return text == str(job.get("experiment_id")) or job["job_id"].startswith(text)


_TYPES: Mapping[str, Callable[[str], object]] = {"priority": parse_priority, "weight": parse_weight}


HANDLERS: Handlers = {
    "job list": Handler(add_list_arguments, list_jobs),
    "job update": Handler(add_update_arguments, update_job),
    "job update-batch": Handler(add_update_batch_arguments, update_jobs),
}
