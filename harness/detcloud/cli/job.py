"""Commands on the job queue."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from detcloud.cli.options import add_paging_options, fetched_max, paged
from detcloud.cli.output import add_output_options, print_items, print_value
from detcloud.cli.session import client_of
from detcloud.cli.table import Column, Item, cell_text, field
from detcloud.client.job import JobChange

LISTED = 100
OPERATIONS = ("priority", "weight", "resource-pool", "ahead-of", "behind-of")
_OPERATION = re.compile(r"([^.=]+)\.([^.=]+)=(.+)", re.DOTALL)


def listing_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-p",
        "--resource-pool",
        metavar="POOL",
        help="the queue of this pool (default: the default compute pool's)",
    )
    add_paging_options(parser, LISTED)
    parser.add_argument("--reverse", action="store_true", help="the last of the queue first")
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    jobs = client_of(arguments).jobs(
        arguments.resource_pool, reverse=arguments.reverse, limit=fetched_max(arguments)
    )
    items = [job.data for job in paged(jobs, arguments)]
    print_items(_columns(items), items, arguments)
    return 0


def update_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "job_id", metavar="JOB", help="its id, any unique beginning of it, or its experiment's id"
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "-p", "--priority", type=priority_of, metavar="N", help="1 to 99, 1 being the first"
    )
    which.add_argument(
        "-w", "--weight", type=weight_of, metavar="X", help="its share under fair share"
    )
    which.add_argument("--resource-pool", metavar="POOL", help="move it to this pool")
    which.add_argument("--ahead-of", metavar="JOB", help="put it right before this one")
    which.add_argument("--behind-of", metavar="JOB", help="put it right behind this one")
    add_output_options(parser, csv=False)


def update(arguments: Namespace) -> int:
    job = client_of(arguments).job(arguments.job_id)
    given = {name: getattr(arguments, name.replace("-", "_")) for name in OPERATIONS}
    name, value = next((name, value) for name, value in given.items() if value is not None)
    job.change(_change(name, value))
    if arguments.form != "text":
        print_value(job.data, arguments.form)
    else:
        print(_changed(job.data, name))
    return 0


def update_batch_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "operations",
        nargs="+",
        type=operation,
        metavar="JOB.OPERATION=VALUE",
        help="such as 73853c5c.priority=1; operations are " + ", ".join(OPERATIONS),
    )
    add_output_options(parser)


def update_batch(arguments: Namespace) -> int:
    """All operations in order; those that fail do not keep the others from being carried out."""
    jobs = client_of(arguments).update_jobs(arguments.operations)
    items = [job.data for job in jobs]
    if arguments.form != "text":
        print_items(_columns(items), items, arguments)
        return 0
    for item, change in zip(items, arguments.operations, strict=True):
        name = next(name for name in change if name != "job_id")
        print(_changed(item, name.replace("_", "-")))
    return 0


def operation(text: str) -> JobChange:
    """Type of one operation of a batch on the command line."""
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
    return {"job_id": job_id, **_change(name, _TYPES.get(name, str)(value))}


def _change(name: str, value: Any) -> JobChange:
    """One change under the name that the command line has for it."""
    change: Any = {name.replace("-", "_"): value}
    return cast(JobChange, change)


def _columns(items: Sequence[Item]) -> tuple[Column, ...]:
    """By weight where the pool of the first job shares, else by priority."""
    shares = bool(items) and items[0]["scheduler"] == "fair_share"
    rank = field("Weight", "weight") if shares else field("Priority", "priority")
    return (
        field("#", "jobs_ahead"),
        Column("ID", lambda job: job["job_id"][:8]),
        field("Type", "type", spare=3),
        field("Job Name", "name"),
        rank,
        Column("Submitted", lambda job: _moment(job["submitted_ms"]), spare=4),
        Column(
            "Slots (acquired/needed)",
            lambda job: f"{job['allocated_slots']}/{job['requested_slots']}",
        ),
        field("Status", "state"),
        field("User", "user", spare=2),
        field("Experiment", "experiment_id", spare=1),
        Column("Expected start", lambda job: _moment(job["expected_start_ms"]), spare=5),
        Column("Waits", lambda job: job["waits"].removeprefix("waits: ") or None),
    )


def _moment(time_ms: int | None) -> str | None:
    """UTC, as the queue has always been shown."""
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _changed(job: Item, operation: str) -> str:
    """What is so now, in a line."""
    name = f"job {job['job_id'][:8]} ({cell_text(job['name'])})"
    if operation in ("ahead-of", "behind-of"):
        place = "" if job["jobs_ahead"] is None else f" at place {job['jobs_ahead']}"
        return f"{name} is{place} in the queue of pool {job['resource_pool']}"
    if operation == "resource-pool":
        return f"{name} is in pool {job['resource_pool']}"
    return f"{name} has {operation} {cell_text(job[operation])}"


def priority_of(text: str) -> int:
    """Type of a priority on the command line; the cluster says which are good."""
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise ArgumentTypeError(f"{text!r} is no priority; expected 1 to 99, 1 being the first")
    return int(text)


def weight_of(text: str) -> float:
    """Type of a weight on the command line."""
    try:
        weight = float(text)
    except ValueError:
        weight = float("nan")
    if not abs(weight) < float("inf"):
        raise ArgumentTypeError(f"{text!r} is no weight; expected a number above 0, such as 2")
    return weight


_TYPES: Mapping[str, Callable[[str], object]] = {"priority": priority_of, "weight": weight_of}
