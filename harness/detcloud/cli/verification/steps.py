"""The steps of a self-test: the check of a pool, the notice, and the alarms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from detcloud.cli.rendering.progress import Progress, show_progress
from detcloud.cli.verification.check_programs import (
    CheckSettings,
    new_label,
    submit_check,
    submit_notice_check,
)
from detcloud.cli.verification.cloud_calls import CloudCalls, wait_with_progress
from detcloud.cli.verification.plan import PlannedPool
from detcloud.cli.verification.report import StepFailed, StepReport, StepSkipped
from detcloud.cli.verification.runs import PoolBefore, TrialRuns, Watch, boot_texts
from detcloud.cli.verification.tunnel_check import choose_port
from detcloud.client import Client, Experiment
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

# The notice is sent when the trial has trained this many batches.
BATCHES_MIN: Final = 5
# The report of a running trial arrives within a minute.
RESUMPTION_SECONDS_MAX: Final = 180.0
_RESULTS_KEY: Final = "gpu_check"
_LOG_LINES_MAX: Final = 15
Announce = Callable[[str], None]


@dataclass
class Session:
    """The state of a self-test."""

    client: Client
    calls: CloudCalls
    cloud: str
    """The cloud's name."""
    check_folder: Path
    announce: Announce
    """Prints a line for users at once."""
    role: str = ""
    """The role for AWS's Fault Injection Service, or ""."""
    settings: CheckSettings = field(default_factory=lambda: CheckSettings(new_label()))
    """The settings of all experiments of this self-test."""
    experiments: list[Experiment] = field(default_factory=list)
    """The submitted experiments."""
    watches: list[Watch] = field(default_factory=list)
    before: dict[str, PoolBefore] = field(default_factory=dict)
    """The state of each pool before the self-test, by the pool's name."""
    machines: dict[str, str] = field(default_factory=dict)
    """The zone of each instance on which an experiment ran, by id."""
    sleep: Callable[[float], None] = time.sleep
    seconds: Callable[[], float] = time.monotonic

    def watch(self, experiment: Experiment, pool: str, progress: Progress) -> Watch:
        """Record a submitted experiment, and return the experiment's watch."""
        self.experiments.append(experiment)
        before = self.before[pool]
        watch = Watch(self.client, experiment, pool, before, progress, self.sleep, self.seconds)
        self.watches.append(watch)
        return watch

    def remember_machines(self, watch: Watch, runs: TrialRuns) -> None:
        """Record the machines of the runs that were not running before the self-test."""
        for run in runs.runs:
            row = watch.instances.get(run.agent)
            if row is not None:
                self.machines[run.agent] = str(row["zone"])


@contextmanager
def run_step(name: str, steps: list[StepReport], announce: Announce) -> Iterator[StepReport]:
    """Run a step in the block: append the report to `steps`, and announce begin and end.

    StepFailed, StepSkipped and errors of detcloud become the step's result. After any other
    exception, such as KeyboardInterrupt, the step has failed, and the exception continues.
    """
    step, began = StepReport(name), time.monotonic()
    steps.append(step)
    announce(f"{name} ...")
    try:
        yield step
    except StepSkipped as error:
        step.result, step.reason = "skipped", str(error)
    except (StepFailed, DetcloudError) as error:
        step.result, step.reason = "failed", str(error)
    except BaseException as error:
        step.result, step.reason = "failed", type(error).__name__
        if isinstance(error, KeyboardInterrupt):
            step.reason = "interrupted"
        raise
    finally:
        step.seconds = time.monotonic() - began
        reason = f": {step.reason}" if step.reason else ""
        announce(f"{name}: {step.result} after {step.seconds:.0f} s{reason}")


def check_pool(session: Session, planned: PlannedPool, step: StepReport) -> None:
    """Run the check of a pool in an experiment, and record the seconds of each phase.

    Raises:
        StepFailed: an instance or the trial failed, or a phase took too long.
    """
    with show_progress(step.name) as progress:
        experiment = wait_with_progress(
            lambda: submit_check(session.client, session.check_folder, planned, session.settings),
            progress,
            "submitting",
        )
        watch = session.watch(experiment, planned.pool, progress)
        runs = watch.await_start()
        session.remember_machines(watch, runs)
        _record_phases(step, watch, runs)
        watch.await_end()
        # Both may have been missed during the run.
        runs = watch.trial_runs()
        session.remember_machines(watch, runs)
        _record_phases(step, watch, runs)
    _record_results(step, watch)


def _record_phases(step: StepReport, watch: Watch, runs: TrialRuns) -> None:
    """Record the API's times from the submission to each phase, in seconds."""
    experiment, details = watch.experiment, step.details
    details["experiment"] = experiment.id
    if not runs.runs:
        return
    run = runs.runs[0]
    row = watch.instances.get(run.agent)
    marks = {"started": run.started_ms, "ended": experiment.ended_ms or 0}
    if row is None:
        details["machine"] = f"{run.agent} was running before"
    else:
        details["machine"] = " ".join(
            str(row[name]) for name in ("id", "instance_type", "zone", "market")
        )
        marks = {
            "launched": row["launched_ms"],
            "enrolled": watch.enrolled_ms(run.agent),
            **marks,
        }
    details["seconds from submission"] = {
        name: round((mark - experiment.created_ms) / 1000, 1)
        for name, mark in marks.items()
        if mark
    }


def _record_results(step: StepReport, watch: Watch) -> None:
    """Record the results that the check reported. Raise StepFailed if the check failed."""
    experiment, trial = watch.experiment, watch.trial()
    told: dict[str, Any] = {}
    if trial is not None:
        trial.refresh()
        told = trial.data["metadata"].get(_RESULTS_KEY) or {}
    step.details["check"] = {name: entry[0] for name, entry in told.items()}
    failed = [f"{name}: {entry[2]}" for name, entry in told.items() if entry[0] == "failed"]
    if failed:
        raise StepFailed("; ".join(failed))
    if experiment.state != "COMPLETED":
        lines = [] if trial is None else list(trial.log_lines())[-_LOG_LINES_MAX:]
        log = "\n".join(str(line["text"]) for line in lines)
        message = (trial.data["message"] if trial else "") or experiment.message or ""
        raise StepFailed(f"the experiment ended as {experiment.state}: {message}\n{log}".strip())


def refuse_failed_pool(steps: list[StepReport], pool: str) -> None:
    """Raise StepSkipped if the check of a pool has failed."""
    if any(step.name == f"pool {pool}" and step.result == "failed" for step in steps):
        raise StepSkipped(f"the check of pool {pool} failed")


def check_notice(
    session: Session,
    planned: PlannedPool,
    step: StepReport,
    look_at_trial: Callable[[int, int, Progress], None] | None = None,
) -> None:
    """Train, send a notice to the machine, and check that the trial resumes on another machine.

    The experiment is killed afterwards.

    Args:
        look_at_trial: called before the notice, with the id of the trial, a port at which the
            trial's program echoes bytes, and the progress line.

    Raises:
        StepSkipped: the cloud cannot interrupt an instance of this market.
        StepFailed: the trial did not save its work, or did not resume from it elsewhere.
    """
    if session.cloud == "gcp" and planned.market != "spot":
        raise StepSkipped("no pool with spot instances, which a maintenance event preempts")
    port = choose_port()
    with show_progress(step.name) as progress:
        experiment = submit_notice_check(session.client, planned, session.settings, port)
        watch = session.watch(experiment, planned.pool, progress)
        first = watch.await_start().runs
        _refuse_end(watch)
        step.details["experiment"], machine = experiment.id, first[0].agent
        session.remember_machines(watch, TrialRuns(first))
        _await_batches(watch, BATCHES_MIN)
        trial = watch.trial()
        if look_at_trial is not None and trial is not None:
            look_at_trial(trial.id, port, progress)
            watch.experiment.refresh()
            _refuse_end(watch)
        zone = _zone_of(session, planned.pool, machine)
        noticed_ms = int(time.time() * 1000)
        sent = wait_with_progress(
            lambda: session.calls.call("notice", [f"{zone}/{machine}"], session.role),
            progress,
            "sending the notice",
        )
        step.details["notice"] = sent["means"]
        step.details["simulated"] = sent["simulated"]
        resumed = watch.await_start(run=1)
        session.remember_machines(watch, resumed)
        _refuse_end(watch)
        _check_resumption(step, watch, resumed, noticed_ms)
        experiment.kill()


def _check_resumption(step: StepReport, watch: Watch, found: TrialRuns, noticed_ms: int) -> None:
    """Compare the second run of a trial with the checkpoint of the first run.

    `noticed_ms` is the time of the notice, by this machine's clock. Raise StepFailed.
    """
    first, second = found.runs[0], found.runs[1]
    saved = [(time_ms, batches) for time_ms, batches in found.saved if time_ms <= second.placed_ms]
    if not saved:
        raise StepFailed("the trial saved no checkpoint between the notice and its end")
    saved_ms, batches = saved[-1]
    step.details["first machine"], step.details["second machine"] = first.agent, second.agent
    step.details["saved at batch"] = batches
    step.details["seconds from notice"] = {
        "checkpoint": round((saved_ms - noticed_ms) / 1000, 1),
        "next run": round((second.started_ms - noticed_ms) / 1000, 1),
    }
    if first.agent == second.agent:
        raise StepFailed(f"the trial resumed on the same machine {first.agent}")
    resumed_at = _await_resumption(watch)
    step.details["resumed at batch"] = resumed_at
    if resumed_at != batches:
        raise StepFailed(f"the trial resumed at batch {resumed_at} instead of {batches}")


def _await_batches(watch: Watch, batches: int) -> None:
    """Wait until the trial has trained some batches. Raise StepFailed after the limit."""
    give_up_at = watch.seconds() + watch.limits.run
    while True:
        trial = watch.trial()
        if trial is not None and trial.steps_completed >= batches:
            return
        watch.experiment.refresh()
        _refuse_end(watch)
        if watch.seconds() > give_up_at:
            limit = watch.limits.run
            raise StepFailed(f"the trial did not reach {batches} batches in {limit:g} s")
        watch.pause(f"training to {count_text(batches, 'batch')}")


def _await_resumption(watch: Watch) -> int:
    """Wait until the trial reports the batch at which a later run resumed, and return the batch.

    Return 0 if no report arrived, or if the run started from the beginning.
    """
    give_up_at = watch.seconds() + RESUMPTION_SECONDS_MAX
    while True:
        trial = watch.trial()
        assert trial is not None
        trial.refresh()
        # The first run reported 0.
        resumed_at = int(trial.data["metadata"].get("resumed_at") or 0)
        if resumed_at or watch.seconds() > give_up_at:
            return resumed_at
        watch.experiment.refresh()
        _refuse_end(watch)
        watch.pause("resuming")


def _refuse_end(watch: Watch) -> None:
    """Raise StepFailed if the experiment has ended."""
    if watch.experiment.has_ended:
        message = watch.experiment.message or ""
        raise StepFailed(f"the experiment ended as {watch.experiment.state} {message}".strip())


def _zone_of(session: Session, pool: str, machine: str) -> str:
    """Return the zone of an instance of a pool. Raise StepFailed if the instance is not listed."""
    for row in session.client.resource_pool(pool).data["instance_list"]:
        if row["id"] == machine:
            return str(row["zone"])
    raise StepFailed(f"the pool does not list the machine {machine}")


def add_boot_logs(session: Session, steps: list[StepReport]) -> None:
    """Add the output of failed boots to the failed steps of pools.

    The output may arrive after the step. Errors of the cluster are ignored.
    """
    for watch in session.watches:
        with suppress(DetcloudError):
            pool = session.client.resource_pool(watch.pool).data
            boots = boot_texts(pool, watch.experiment.created_ms)
            for step in steps:
                if boots and step.name == f"pool {watch.pool}" and boots[0] not in step.reason:
                    step.reason += f"\n{boots[0]}"


def check_alarms(session: Session, step: StepReport) -> None:
    """Trigger the alarms of the stack, or read the alarms if the cloud cannot trigger alarms.

    Raises:
        StepSkipped: no alarm could be triggered, and none failed.
        StepFailed: an alarm failed.
    """
    with show_progress(step.name) as progress:
        answer = wait_with_progress(
            lambda: session.calls.call("alarms"), progress, "triggering each alarm"
        )
    alarms = answer["alarms"]
    step.details |= {
        alarm["name"]: ": ".join(filter(None, (alarm["result"], alarm["reason"])))
        for alarm in alarms
    }
    results = {alarm["result"] for alarm in alarms}
    if "failed" in results:
        failed = ", ".join(alarm["name"] for alarm in alarms if alarm["result"] == "failed")
        raise StepFailed(f"failed: {failed}")
    if "ok" not in results:
        raise StepSkipped(next((alarm["reason"] for alarm in alarms), "the stack has no alarms"))
