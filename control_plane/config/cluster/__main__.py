"""`python -m control_plane.config.cluster FILE`: checks a cluster configuration."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from control_plane.config.__main__ import problem_values, read_config, render_report
from control_plane.config.pool_warnings import pool_warnings
from control_plane.config.pools import ClusterConfig, check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.findings import printable_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a cluster configuration and print the result to standard output.

    Return 0 for a valid configuration after printing a summary and warnings. Otherwise print each
    problem as a line and return 1. With `--json`, print a JSON report instead of text: `ok`,
    `problems`, `warnings`, and `config`, which has masked secrets or is null. Exit with SystemExit
    after `--help` and `--reference`, and for unknown options.

    Args:
        arguments: the words of the command line. None: the arguments of the process.
    """
    options = _parser().parse_args(arguments)
    report: dict[str, Any] = {"ok": True, "problems": [], "warnings": [], "config": None}
    try:
        config = check_cluster(read_config(options.file))
        warnings = list(pool_warnings(config))
        report |= {"config": config.masked_values(), "warnings": warnings}
        lines = [*_summary(config), *(f"warning: {warning}" for warning in warnings)]
        text = "\n".join(map(printable_line, lines))
    except ConfigInvalid as error:
        text = "\n".join(problem.text(options.file) for problem in error.problems)
        report |= {"ok": False, "problems": [problem_values(item) for item in error.problems]}
    shown = render_report(report) if options.json else text
    sys.stdout.write(shown.encode(errors="backslashreplace").decode() + "\n")
    return 0 if report["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m control_plane.config.cluster",
        description="Check a cluster configuration.",
    )
    parser.add_argument("file", metavar="FILE", help="the YAML file")
    parser.add_argument(
        "--reference", action=_Reference, nargs=0, help="print the reference of all fields instead"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


class _Reference(argparse.Action):
    """The option `--reference`: print the reference of clusters' fields and exit with 0."""

    def __call__(self, parser: argparse.ArgumentParser, *parsed: object) -> None:
        from control_plane.config.reference import render_cluster_reference

        sys.stdout.write(render_cluster_reference())
        parser.exit()


def _summary(config: ClusterConfig) -> list[str]:
    shared = config.resource_manager
    rows = []
    for pool in config.resource_pools:
        scheduler = config.scheduler_of(pool)
        provider = pool.provider
        machines = "agents started by hand"
        if provider is not None:
            least, most = provider.min_instances, provider.max_instances
            machines = f"{least} to {most} instances of {provider.type}"
        preemptive = ", preemptive" if scheduler.preemption else ""
        rows.append(f"{pool.pool_name}: {scheduler.type}{preemptive}, {machines}")
    rows.append(f"with slots by default: {shared.default_compute_resource_pool}")
    if config.checkpoint_storage is not None:
        rows.append(f"checkpoints by default: {config.checkpoint_storage.type}")
    rows.append(f"without slots by default: {shared.default_aux_resource_pool}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
