"""The order of the steps of a self-test, with the cleanup in any case."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from detcloud.cli.rendering.progress import Progress
from detcloud.cli.verification.cleanup import Cleanup
from detcloud.cli.verification.report import Report, StepReport
from detcloud.cli.verification.runs import read_before
from detcloud.cli.verification.steps import (
    Session,
    add_boot_logs,
    check_alarms,
    check_notice,
    check_pool,
    refuse_failed_pool,
    run_step,
)
from detcloud.cli.verification.tunnel_check import check_tunnel


def run_self_test(session: Session, report: Report, skipped: Collection[str]) -> bool:
    """Run all steps, and the cleanup in any case. Return whether Ctrl-C interrupted a step."""
    steps, plan = report.steps, report.plan
    for pool in plan.pools:
        session.before[pool.pool] = read_before(session.client.resource_pool(pool.pool).data)
    was_interrupted = False
    try:
        for pool in plan.pools:
            with run_step(f"pool {pool.pool}", steps, session.announce) as step:
                check_pool(session, pool, step)
        if plan.notice_pool is not None:
            with run_step(
                f"notice in pool {plan.notice_pool.pool}", steps, session.announce
            ) as step:
                refuse_failed_pool(steps, plan.notice_pool.pool)
                # The tunnel leads to the trial that gets the notice.
                opens_tunnel = "tunnel" not in skipped
                look = partial(_look_through_tunnel, session, steps) if opens_tunnel else None
                check_notice(session, plan.notice_pool, step, look)
        if "alarms" not in skipped:
            with run_step("alarms", steps, session.announce) as step:
                check_alarms(session, step)
    except KeyboardInterrupt:
        was_interrupted = True
    finally:
        cleanup = Cleanup(session, keeps_experiments=report.has_failed)
        try:
            with run_step("cleanup", steps, session.announce) as step:
                cleanup.run(step, report.leftovers)
        except KeyboardInterrupt:
            was_interrupted = True
            report.leftovers += cleanup.unfinished_lines()
        add_boot_logs(session, steps)
    return was_interrupted


def _look_through_tunnel(
    session: Session, steps: list[StepReport], trial_id: int, port: int, progress: Progress
) -> None:
    """Open a tunnel to a trial in a separate step."""
    with run_step("tunnel", steps, session.announce) as step:
        check_tunnel(session.client, trial_id, port, step, progress)
