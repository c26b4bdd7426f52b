"""The removal of a self-test's experiments and instances."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from detcloud.cli.rendering.progress import Progress, show_progress
from detcloud.cli.verification.cloud_calls import wait_with_progress
from detcloud.cli.verification.report import StepFailed, StepReport
from detcloud.cli.verification.runs import status_of
from detcloud.cli.verification.steps import Session
from detcloud.client import Agent, Experiment
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

END_SECONDS_MAX: Final = 90.0
INSTANCES_SECONDS_MAX: Final = 600.0
_LOOK_SECONDS: Final = 2.0
# Clouds may list an instance only some seconds after the launch.
VISIBLE_SECONDS: Final = 15.0
_NOT_FOUND: Final = 404


@dataclass(frozen=True)
class Cleanup:
    """The removal of the experiments and instances of a self-test."""

    session: Session
    keeps_experiments: bool
    """Whether to archive the experiments instead of deleting them, to keep logs after a fault."""

    def run(self, step: StepReport, leftovers: list[str]) -> None:
        """End the experiments and the instances, and record the rest in `leftovers`.

        Instances that ran before the self-test, or that other jobs use, are kept. An instance is
        first closed to other jobs, and then ended with the deployer's credentials.

        Raises:
            StepFailed: an experiment or an instance is left.
        """
        with show_progress(step.name) as progress:
            self._find_experiments()
            for experiment in self.session.experiments:
                leftovers += self._remove_experiment(experiment, progress)
            if self.keeps_experiments:
                # A launch may have been in progress when a step failed.
                self._wait(lambda: False, VISIBLE_SECONDS, progress)
            leftovers += self._end_instances(step, progress)
        if leftovers:
            raise StepFailed(f"{count_text(len(leftovers), 'object')} left")

    def unfinished_lines(self) -> list[str]:
        """Return lines with the commands that continue an interrupted cleanup."""
        ids = " ".join(str(experiment.id) for experiment in self.session.experiments)
        pools = " ".join(self.session.before)
        return [
            f"perhaps experiments {ids}: detcloud kill ID, detcloud delete ID",
            f"perhaps instances {' '.join(self.session.machines)}: "
            f"detcloud resource-pool describe {pools}",
        ]

    def _find_experiments(self) -> None:
        """Add the experiments with the self-test's label that an interruption left unrecorded.

        Errors of the cluster are ignored.
        """
        session = self.session
        known = {experiment.id for experiment in session.experiments}
        with suppress(DetcloudError):
            for experiment in session.client.experiments(label=session.settings.label):
                if experiment.id not in known:
                    session.experiments.append(experiment)

    def _remove_experiment(self, experiment: Experiment, progress: Progress) -> list[str]:
        """End and delete or archive an experiment. Return a line with a command if that failed."""
        verb = "archive" if self.keeps_experiments else "delete"
        try:
            experiment.refresh()
            if not experiment.has_ended:
                experiment.kill()
            is_over = self._wait(lambda: _has_ended(experiment), END_SECONDS_MAX, progress)
            if is_over and self.keeps_experiments:
                experiment.archive()
                return []
            if is_over:
                experiment.delete()
                if self._wait(lambda: _is_deleted(experiment), END_SECONDS_MAX, progress):
                    return []
        except DetcloudError as error:
            return [f"experiment {experiment.id} ({error}): detcloud {verb} {experiment.id}"]
        return [f"experiment {experiment.id}: detcloud {verb} {experiment.id}"]

    def _end_instances(self, step: StepReport, progress: Progress) -> list[str]:
        """End the instances of the self-test; return a line for each instance that is left."""
        session = self.session
        try:
            caused = self._caused_instances()
            ended = [name for name in caused if self._close(name, step)]
            pairs = [f"{caused[name]}/{name}" for name in ended]
            if pairs:
                self._call("end", pairs, progress)
            listed: list[dict[str, Any]] = []

            def is_empty() -> bool:
                found = session.calls.call("instances")["instances"]
                listed[:] = [item for item in found if item["id"] in ended]
                return not listed

            if ended and not self._wait(is_empty, INSTANCES_SECONDS_MAX, progress):
                return [f"instance {item['id']}: {item['removal']}" for item in listed]
            step.details["ended instances"] = ended
        except DetcloudError as error:
            names = ", ".join(session.machines) or "unknown"
            return [f"instances {names} ({error}): `detcloud resource-pool describe POOL`"]
        return []

    def _caused_instances(self) -> dict[str, str]:
        """Return the zones of the instances that the self-test caused, by id.

        These are the instances that ran its trials, and all new instances of a pool without other
        jobs.
        """
        session = self.session
        caused = dict(session.machines)
        for name, before in session.before.items():
            pool = session.client.resource_pool(name).data
            listed = {row["id"]: str(row["zone"]) for row in pool["instance_list"]}
            fresh = {key: zone for key, zone in listed.items() if key not in before.instances}
            has_other_jobs = pool["running"] or pool["queued"]
            caused |= {} if has_other_jobs else fresh
        return caused

    def _close(self, instance: str, step: StepReport) -> bool:
        """Close the agent of an instance to new trials; return whether the instance may end.

        Open the agent again if another job runs there, and return False.
        """
        agent = self._find_agent(instance)
        if agent is None:
            return True
        was_enabled = agent.enabled
        if agent.state == "ALIVE" and was_enabled:
            agent.disable(drain=True)
        agent = self._find_agent(instance)
        if agent is None or not any(slot.allocation for slot in agent.slots):
            return True
        if was_enabled:
            agent.enable()
        step.details.setdefault("kept for other jobs", []).append(instance)
        return False

    def _find_agent(self, instance: str) -> Agent | None:
        """Return the agent of an instance. Return None if no agent has enrolled."""
        agents = self.session.client.agents()
        return next((agent for agent in agents if agent.id == instance), None)

    def _call(self, part: str, instances: list[str], progress: Progress) -> dict[str, Any]:
        """Make calls of the cloud while the progress line is drawn. Raise DetcloudError."""
        calls = self.session.calls
        return wait_with_progress(lambda: calls.call(part, instances), progress, "ending instances")

    def _wait(self, holds: Callable[[], bool], seconds: float, progress: Progress) -> bool:
        """Poll until `holds` returns True, for some seconds. Return the last result."""
        give_up_at = self.session.seconds() + seconds
        while not wait_with_progress(holds, progress, "waiting for the end"):
            if self.session.seconds() > give_up_at:
                return False
            self.session.sleep(_LOOK_SECONDS)
        return True


def _has_ended(experiment: Experiment) -> bool:
    """Return whether an experiment has ended, as of now."""
    experiment.refresh()
    return experiment.has_ended


def _is_deleted(experiment: Experiment) -> bool:
    """Return whether the cluster no longer has an experiment."""
    return status_of(experiment.refresh) == _NOT_FOUND
