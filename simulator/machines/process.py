"""A trial's process on a simulated machine, as docs/trial-directory.md describes.

The process reads directives, trains along a learning curve, validates, writes checkpoints and
reports. The reports are on the machine's disk, so they survive the end of the agent's process, but
not the end of the machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from control_plane.searchers.method import ENDLESS
from control_plane.simulation.trial_course import NextAction, next_action
from simulator.machines.checkpoints import StoredCheckpoint
from simulator.machines.gang import Gang
from simulator.machines.gang_check import CHECK_MS, run_check
from simulator.machines.measured_use import MeasuredUse
from simulator.machines.process_environment import EndNotice, ProcessEnvironment, ProcessPhase
from simulator.machines.report_stream import AGENT_KINDS, Line, ReportStream
from simulator.machines.training import Training

# An agent with a working network delivers an urgent report within this time.
REPORT_MS = 2_000
GOOD_ENDS = frozenset({"completed", "idle", "preempted"})
URGENT = (AGENT_KINDS - {"use"}) | {
    *("checkpoint", "completed", "first_step", "gang_check", "gang_meeting")
}
HANG_STACKS_MS = 3_000
"""The time between a hang and the stacks of the processes, in ms."""


@dataclass
class TrialProcess:
    """The process of an allocation's node.

    The process with rank 0 is the chief, which alone trains, reports results and writes
    checkpoints. The other processes only wait for their end.
    """

    allocation: str
    """The allocation, as `TRIAL_ID.EPOCH`."""
    environment: ProcessEnvironment
    on_report: Callable[[bool], None]
    """Called after each new report with whether the report is urgent."""
    slots: tuple[int, ...] = ()
    rank: int = 0
    training: Training | None = None
    """None for a process that was never started."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """The specification from the cluster."""
    directives: Mapping[str, Any] = field(default_factory=dict)
    """The cluster's latest directives."""
    reports: ReportStream = field(default_factory=ReportStream)
    phase: ProcessPhase = ProcessPhase.STARTING
    steps: int = 0
    """The batches that the trial has trained."""
    saved_steps: int = -1
    """The batches in the trial's newest checkpoint, or -1."""
    completed_length: int = 0
    """The last length that the process reported as completed."""
    notice: EndNotice | None = None
    cause: str = ""
    """The cause of the exit that is not the process's own, or ""."""
    is_killed: bool = False
    _gang: Gang | None = None
    _since_ms: int = 0
    _action_number: int = 0
    _uploads: int = 0
    _noticed_ms: int = 0
    _reports_first_step: bool = False
    _printed_hangs: int = 0
    _use: MeasuredUse = field(default_factory=MeasuredUse)

    @property
    def agent(self) -> str:
        """The agent of the process's node. "" for a process that was never started."""
        return str(self.spec.get("agent_id", ""))

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.phase is ProcessPhase.ENDED

    @property
    def has_exit(self) -> bool:
        """Whether the reports contain an exit."""
        return self.reports.has_exit

    def report(self, line: Line) -> None:
        """Append a report to the process's reports, and call `on_report`."""
        self.reports.append(line, self.rank)
        self.on_report(line["kind"] in URGENT)

    def start(self, delay_ms: int) -> None:
        """Start the process, which joins the gang of the allocation after `delay_ms`."""
        reference = self.spec["latest_checkpoint"]
        self.steps = self.spec["steps_completed"]
        if reference is not None and reference["trial_id"] == self.spec["trial_id"]:
            self.saved_steps = self.steps
        self._gang = self.environment.gang(self.allocation, self.spec["nodes"])
        self._use = MeasuredUse(len(self.slots), self.environment.draw_low_use)
        self._call_later(delay_ms, self._wait_for_nodes)

    def begin_training(self) -> None:
        """Begin to train. The gang calls this for the chief when all nodes have started.

        If the trial's own checkpoint is found damaged, report the damage and fail.
        """
        reference = self.spec["latest_checkpoint"]
        is_own = reference is not None and reference["trial_id"] == self.spec["trial_id"]
        if is_own and self.environment.draw_damage():
            cause = "the store has no weights"
            damage = {"uuid": reference["uuid"], "message": cause}
            self.report({"kind": "checkpoint_damage", **damage})
            self.environment.on_damage(self.spec["trial_id"], reference["uuid"])
            self._exit("errored", code=1, message=cause)
            return
        if action := self.environment.draw_match(self.spec):
            match = {"name": action, "pattern": action, "signal": action, "line": "x"}
            self.report({"kind": "log_policy", "actions": [action], **match})
        if "timeout_ms" in (self.spec.get("gang_check") or {}):
            self.phase = ProcessPhase.CHECKING
            self._call_later(CHECK_MS, self._check_machines)
        else:
            self._begin_work()

    def _check_machines(self) -> None:
        """Report the check of the gang's machines. After a failure, wait for the cluster's kill."""
        assert self._gang is not None
        bad = {name for name, count in self.environment.bad_networks.items() if count > 0}
        lines, wait_ms = run_check(self.spec["gang_check"], self._gang.agents, bad)
        for rank, line in lines.items():
            self._gang.report(rank, line)
        self._call_later(wait_ms, self._begin_work)

    def _begin_work(self) -> None:
        """Begin to train, or hang: do nothing until the end, or until the run works again."""
        end_ms = self.environment.draw_hang(self.spec)
        if end_ms is None:
            self._continue()
            return
        self.phase = ProcessPhase.HANGING
        timeout_ms: int = self.spec["hang_timeout_ms"]
        self._call_later(timeout_ms, lambda: self._report_hang(timeout_ms, end_ms))

    def _report_hang(self, timeout_ms: int, end_ms: int) -> None:
        """Report the hang and the stacks. The run works again `end_ms` later."""
        self.report({"kind": "hang", "silent_ms": timeout_ms, "timeout_ms": timeout_ms})
        self._printed_hangs += 1
        self._print_stacks("loader.py:12 fetch")

        def work_again() -> None:
            self.report({"kind": "hang", "silent_ms": 0})
            self._continue()

        self._call_later(end_ms, work_again)

    def _print_stacks(self, place: str) -> None:
        """Report the place of this node's process after HANG_STACKS_MS, unless the process ends."""

        def report() -> None:
            if not self.has_ended and not self.is_killed:
                self.report({"kind": "stacks", "places": [[self.rank, place]]})

        clock = self.environment.clock
        clock.call_at(clock.now_ms + HANG_STACKS_MS, report)

    def end_with_gang(self, reason: str, delay_ms: int) -> None:
        """End the process after `delay_ms` because of another node's end.

        Args:
            reason: the reason of the exit. "errored" if a node failed or vanished.
        """
        code, message = (1, "a node is gone") if reason == "errored" else (0, "")
        self._call_later(delay_ms, lambda: self._exit(reason, code=code, message=message))

    def fail(self, reason: str, message: str) -> None:
        """End a process that has not run, and report the exit. Do nothing after a reported exit."""
        self._exit(reason, message=message)

    def apply_directives(self, directives: Mapping[str, Any]) -> None:
        """Apply the cluster's directives, unless the current directives have a higher revision."""
        if self.directives and directives["revision"] < self.directives["revision"]:
            return
        self.directives = directives
        hangs = directives.get("hang", 0)
        if self.rank and hangs > self._printed_hangs and not self.has_ended:
            self._printed_hangs = hangs
            self._print_stacks("distributed_c10d.py:2501 all_reduce")
        self.react()

    def give_notice(self, notice: EndNotice) -> None:
        """Give the process notice of the machine's end, so that the gang saves its work and ends.

        Do nothing after the end or a first notice. If the process is training, is not killed and
        has enough time to save, a checkpoint becomes due. Otherwise no checkpoint is due any more.
        """
        if self.has_ended or self.notice is not None:
            return
        self.notice = notice
        self._noticed_ms = self.environment.clock.now_ms
        left_ms = notice.deadline_ms - self.environment.clock.now_ms
        if (
            self.phase is ProcessPhase.TRAINING
            and not self.is_killed
            and left_ms >= self._checkpoint_ms()
        ):
            self.environment.due_checkpoints[self.allocation] = ""
        else:
            # This node may end before the gang can write a checkpoint.
            self.environment.excuse_checkpoint(self.allocation)
        self.react()

    def kill(self, delay_ms: int) -> None:
        """Kill the process after `delay_ms`. Do nothing after the end or a first kill.

        Until then the process does nothing more, and no checkpoint is due.
        """
        if self.has_ended or self.is_killed:
            return
        self.is_killed = True
        # The work of a killed process is not needed.
        self.environment.excuse_checkpoint(self.allocation)
        self._call_later(delay_ms, lambda: self._exit("killed", signal=9))

    def fence(self) -> None:
        """Kill the process with a delay of 0 ms, because a newer session of the agent began.

        The report of the exit names this cause, unless another cause is set. See `kill`.
        """
        self.cause = self.cause or "another session of its agent began"
        self.kill(0)

    def vanish(self) -> None:
        """End the process without a report of an exit. The other nodes of the gang fail later."""
        self._action_number += 1
        is_news = not self.has_ended
        self.phase = ProcessPhase.ENDED
        if self._gang is not None and is_news:
            self._gang.handle_node_end(self, "errored", well=False)

    @property
    def must_stop(self) -> bool:
        """Whether the process must save its work and end, by a notice or a directive."""
        return self.notice is not None or self.directives.get("preempt") is not None

    def react(self) -> None:
        """React to a new notice or new directives of this node or another node of the gang.

        - In an incomplete gang, a waiting process that must stop exits as preempted.
        - Another node than the chief lets the chief react.
        - A chief that waits for work continues. A chief that trains and must stop finishes the
          current batch first.

        Do nothing after the end or a kill.
        """
        if self.is_killed or self.has_ended or self._gang is None:
            return
        if not self._gang.is_complete:
            if self.phase is ProcessPhase.WAITING_FOR_NODES and self.must_stop:
                self._exit("preempted")
        elif self.rank:
            self._gang.react()
        elif self.phase is ProcessPhase.WAITING_FOR_WORK:
            self._continue()
        elif self.phase is ProcessPhase.TRAINING and self._gang.must_stop:
            # A process stops at the end of a workload. In the simulation, a workload is a batch.
            self._train_on_to(self._trained_batches() + 1)

    def _wait_for_nodes(self) -> None:
        """Join the gang and wait for the other nodes, or exit if the process must stop."""
        assert self._gang is not None
        self.phase = ProcessPhase.WAITING_FOR_NODES
        if self.must_stop:
            self._exit("preempted")
            return
        for line in self._use.begin(self.environment.clock.now_ms):
            self.report(line)
        self._gang.add_node(self)

    def _continue(self) -> None:
        """Start the chief's next action by the directives: train, wait, save and exit, or complete.

        A length that is reached is completed instead of trained. Before an exit as preempted or
        idle, save a checkpoint.
        """
        assert self._gang is not None
        directives = self.directives
        length, answered = directives["length"], directives["answered"]
        match next_action(
            length,
            max(self.completed_length, answered),
            answered,
            is_closed=directives["closed"],
            must_stop=self._gang.must_stop,
        ):
            case NextAction.TRAIN if self.steps >= self._end_batch():
                self._complete_length(length)
            case NextAction.TRAIN:
                self._train(self._end_batch())
            case NextAction.COMPLETE:
                self._end()
            case NextAction.YIELD:
                self._save_checkpoint(lambda: self._exit("preempted"))
            case NextAction.IDLE:
                self._save_checkpoint(lambda: self._exit("idle"))
            case NextAction.WAIT:
                self.phase = ProcessPhase.WAITING_FOR_WORK

    def _end_batch(self) -> int:
        """Return the length of the directives in batches."""
        assert self.training is not None
        return self.training.length_batches(self.directives)

    def _end(self) -> None:
        """Exit after the last training: as completed, or with an error of the trial's code."""
        if self.training is not None and self.spec["restarts"] < self.training.bad_ends_until:
            self._exit("errored", code=1, message="the code fails as it ends")
        else:
            self._exit("completed")

    def _train(self, end: int) -> None:
        """Train until the next validation, checkpoint or failure, at most until batch `end`."""
        assert self.training is not None
        self.phase = ProcessPhase.TRAINING
        self._since_ms = self.environment.clock.now_ms
        if self.spec.get("replaces_run") and not self._reports_first_step:
            self._report_first_step(ceil(self.training.learning_curve.batch_ms))
        self._train_on_to(self.training.next_stop(self.steps, end))

    def _report_first_step(self, delay_ms: int) -> None:
        """Report the first step of a run that replaces another run after `delay_ms`.

        Nothing is reported if the process trains no longer then.
        """
        self._reports_first_step = True
        clock, steps = self.environment.clock, self.steps + 1

        def report() -> None:
            if self.phase is ProcessPhase.TRAINING:
                durations = {"restore": 0, "first_step": delay_ms}
                line = {"steps_completed": steps, "durations_ms": durations}
                self.report({"kind": "first_step", **line})

        clock.call_at(clock.now_ms + delay_ms, report)

    def _train_on_to(self, stop: int) -> None:
        """Train until batch `stop`, or until an earlier failure of the code."""
        assert self.training is not None
        failing = self.training.next_failure(self.spec["restarts"], self.steps, stop)
        stop = stop if failing is None else failing
        due_ms = self._since_ms + ceil((stop - self.steps) * self.training.learning_curve.batch_ms)
        self._call_later(
            due_ms - self.environment.clock.now_ms,
            lambda: self._reach_stop(stop, failing is not None),
        )

    def _trained_batches(self) -> int:
        """Return the number of batches that are completely trained at this time."""
        assert self.training is not None
        passed_ms = self.environment.clock.now_ms - self._since_ms
        return self.steps + int(passed_ms / self.training.learning_curve.batch_ms)

    def _reach_stop(self, stop: int, failing: bool) -> None:
        """Fail, or validate and save if due at batch `stop`, then continue.

        Report the progress if the length is in epochs.
        """
        training, length = self.training, self.directives["length"]
        assert training is not None
        self.steps = stop
        if failing:
            self._exit("errored", code=1, message=f"the code fails at batch {stop}")
            return
        end = None if length is None else self._end_batch()
        if end is not None and self.directives.get("length_unit") == "epochs":
            self.report({"kind": "progress", "value": min(1.0, stop / end)})
        if end is None or stop < end:
            if training.validation_period and stop % training.validation_period == 0:
                self._validate()
            if training.checkpoint_period and stop % training.checkpoint_period == 0:
                self._save_checkpoint(self._continue)
                return
        self._continue()

    def _validate(self) -> dict[str, float | None]:
        """Report the metrics of a validation, and return the metrics."""
        assert self.training is not None
        metrics = self.training.metrics(self.steps)
        line = {"group": "validation", "steps_completed": self.steps, "metrics": metrics}
        self.report({"kind": "metrics", **line})
        for line in self._use.look_again():
            self.report(line)
        return metrics

    def _complete_length(self, length: int) -> None:
        """Write a checkpoint, validate, report the length as completed, and continue.

        An endless length is not reported.
        """

        def validate() -> None:
            assert self.training is not None
            metric = self._validate()[self.training.metric]
            if length != ENDLESS:
                self.completed_length = length
                self.report({"kind": "completed", "length": length, "metric": metric})
            self._continue()

        self._save_checkpoint(validate)

    def _save_checkpoint(self, then: Callable[[], None]) -> None:
        """Write a checkpoint of the current step, then call `then`.

        Call `then` at once if the step is already saved. Reports announce and confirm the
        checkpoint.
        """
        if self.saved_steps >= self.steps or self.training is None:
            then()
            return
        self.phase = ProcessPhase.CHECKPOINTING
        self._uploads += 1
        trial_id, epoch = map(int, self.allocation.split("."))
        uuid = f"{trial_id:08x}-{epoch:04x}-4000-8000-{self._uploads:012x}"
        path = f"{self.spec['experiment_id']}/{trial_id}/{epoch}/{uuid}"
        fields = {"uuid": uuid, "steps_completed": self.steps, "path": path}
        self.report({"kind": "checkpoint_intent", **fields})
        self._call_later(self.training.upload_ms, lambda: self._finish_checkpoint(fields, then))

    def _finish_checkpoint(self, fields: Line, then: Callable[[], None]) -> None:
        """Store a checkpoint, report it, and call `then`. A due checkpoint is now fulfilled."""
        training = self.training
        assert training is not None
        self.saved_steps = self.steps
        stored = StoredCheckpoint(
            uuid=fields["uuid"],
            path=fields["path"],
            steps=self.steps,
            batches=training.inherited_batches + self.steps,
            size_bytes=training.checkpoint_bytes,
        )
        self.environment.checkpoints.add_checkpoint(stored)
        if self.environment.due_checkpoints.get(self.allocation) == "":
            self.environment.due_checkpoints[self.allocation] = stored.uuid
        line = {"size_bytes": stored.size_bytes, "files": 1, "manifest_sha256": "0" * 64}
        self.report({"kind": "checkpoint", **fields, **line, "metadata": {}})
        then()

    def _checkpoint_ms(self) -> int:
        """Return the ms that are needed to finish a batch, write a checkpoint and report it."""
        assert self.training is not None
        return ceil(self.training.learning_curve.batch_ms) + self.training.upload_ms + REPORT_MS

    def _exit(self, reason: str, *, code: int = 0, signal: int = 0, message: str = "") -> None:
        """End the process, cancel the scheduled action, report the exit, and inform the gang.

        Do nothing after a reported exit. After a notice, the report names the machine's end as the
        cause.
        """
        if self.has_exit:
            return
        self._action_number += 1
        self.phase = ProcessPhase.ENDED
        if self.notice is not None:
            self.cause = "the machine is about to end"
        notice: Line = {"notice": self.cause} if self.cause else {}
        if self.notice is not None:
            notice["notice_age_ms"] = self.environment.clock.now_ms - self._noticed_ms
        for line in self._use.end(self.environment.clock.now_ms):
            self.report(line)
        self.report(
            {
                "kind": "exited",
                "code": code,
                "signal": signal,
                "reason": reason,
                "directive_revision": self.directives.get("revision", 0),
                "message": message,
                **notice,
            }
        )
        if self._gang is not None:
            self._gang.handle_node_end(self, reason, well=reason in GOOD_ENDS)

    def _call_later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Call `action` after `delay_ms`, in place of the action that was scheduled before.

        The action is cancelled by the end of the process.
        """
        self._action_number += 1
        number = self._action_number

        def run_unless_ended() -> None:
            if self._action_number == number and not self.has_ended:
                action()

        self.environment.clock.call_at(
            self.environment.clock.now_ms + max(0, delay_ms), run_unless_ended
        )
