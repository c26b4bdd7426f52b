"""A trial's process on a simulated machine: it reads directives, trains along its learning curve,
validates, writes checkpoints and reports, as docs/trial-directory.md says.

Its reports lie on the machine's disk, and so survive the agent, but not the machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import Any

from control_plane.searchers.method import ENDLESS
from control_plane.simulation.virtual_clock import VirtualClock
from lambdas.simulation.checkpoints import CheckpointStore, StoredCheckpoint
from lambdas.simulation.gang import Gang, gang_registry
from lambdas.simulation.training import Training

Line = dict[str, Any]
AGENT = "agent"
LINE_BYTES = 100
# An agent with a working network has reported something urgent by then.
REPORT_MS = 2_000
GOOD_ENDS = frozenset({"completed", "idle", "preempted"})
URGENT = frozenset({"checkpoint", "completed", "exited", "container"})


class ProcessPhase(Enum):
    """The phase that a process is in."""

    STARTING = "starting"
    WAITING_FOR_NODES = "waiting for nodes"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    WAITING_FOR_WORK = "waiting for work"
    ENDED = "ended"


@dataclass
class ProcessEnvironment:
    """The parts of the simulation that all processes share. `due_checkpoints`: of the allocations
    that got notice in time to write a checkpoint, the checkpoint that they wrote, "" for none yet.
    `draw_damage` draws whether a checkpoint is found damaged, and `on_damage` hears of its trial
    and its UUID.
    """

    clock: VirtualClock
    checkpoints: CheckpointStore
    gang: Callable[[str, int], Gang] = field(default_factory=gang_registry)
    due_checkpoints: dict[str, str] = field(default_factory=dict)
    draw_damage: Callable[[], bool] = lambda: False
    on_damage: Callable[[int, str], None] = lambda trial_id, uuid: None

    def excuse_checkpoint(self, allocation: str) -> None:
        """Expect no checkpoint of the allocation any more, if it is still to be written."""
        if self.due_checkpoints.get(allocation) == "":
            del self.due_checkpoints[allocation]


@dataclass(frozen=True)
class EndNotice:
    """Notice that the machine ends at `deadline_ms` of the virtual clock."""

    deadline_ms: int


@dataclass
class TrialProcess:
    """One node of an allocation. `on_report` is called with each new line: is it urgent? Rank 0 is
    the chief, which alone reports and saves; the others only end when they are told to.
    """

    allocation: str
    environment: ProcessEnvironment
    on_report: Callable[[bool], None]
    slots: tuple[int, ...] = ()
    rank: int = 0
    training: Training | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    directives: Mapping[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, int, Line]] = field(default_factory=list)
    phase: ProcessPhase = ProcessPhase.STARTING
    steps: int = 0
    saved_steps: int = -1
    completed_length: int = 0
    notice: EndNotice | None = None
    cause: str = ""
    is_killed: bool = False
    _gang: Gang | None = None
    _offsets: dict[str, int] = field(default_factory=dict)
    _since_ms: int = 0
    _action_number: int = 0
    _uploads: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended completely."""
        return self.phase is ProcessPhase.ENDED

    @property
    def has_exit(self) -> bool:
        """Whether an exit is among the reports."""
        return any(line["kind"] == "exited" for _, _, line in self.lines)

    def report(self, line: Line) -> None:
        """Append a line to the stream that its kind belongs to."""
        writer = AGENT if line["kind"] in ("container", "exited") else "0"
        self._offsets[writer] = self._offsets.get(writer, 0) + LINE_BYTES
        self.lines.append((writer, self._offsets[writer], line))
        self.on_report(line["kind"] in URGENT)

    def start(self, delay_ms: int) -> None:
        """Start the process, which is ready to train after a while."""
        reference = self.spec["latest_checkpoint"]
        self.steps = self.spec["steps_completed"]
        if reference is not None and reference["trial_id"] == self.spec["trial_id"]:
            self.saved_steps = self.steps
        self._gang = self.environment.gang(self.allocation, self.spec["nodes"])
        self._call_later(delay_ms, self._wait_for_nodes)

    def begin_training(self) -> None:
        """Begin to train, once all nodes have started. A chief that cannot restore fails."""
        reference = self.spec["latest_checkpoint"]
        is_own = reference is not None and reference["trial_id"] == self.spec["trial_id"]
        if is_own and self.environment.draw_damage():
            cause = "the store has no weights"
            damage = {"uuid": reference["uuid"], "message": cause}
            self.report({"kind": "checkpoint_damage", **damage})
            self.environment.on_damage(self.spec["trial_id"], reference["uuid"])
            self._exit("errored", code=1, message=cause)
            return
        self._continue()

    def end_with_gang(self, reason: str, delay_ms: int) -> None:
        """End as the chief did, or because a node is gone."""
        code, message = (1, "a node is gone") if reason == "errored" else (0, "")
        self._call_later(delay_ms, lambda: self._exit(reason, code=code, message=message))

    def fail(self, reason: str, message: str) -> None:
        """End the process, which has not run."""
        self._exit(reason, message=message)

    def apply_directives(self, directives: Mapping[str, Any]) -> None:
        """Apply the cluster's directives, unless they are older than the last ones."""
        if self.directives and directives["revision"] < self.directives["revision"]:
            return
        self.directives = directives
        self.react()

    def give_notice(self, notice: EndNotice) -> None:
        """Give notice of the machine's end, so that work is saved immediately if time allows."""
        if self.has_ended or self.notice is not None:
            return
        self.notice = notice
        left_ms = notice.deadline_ms - self.environment.clock.now_ms
        if (
            self.phase is ProcessPhase.TRAINING
            and not self.is_killed
            and left_ms >= self._checkpoint_ms()
        ):
            self.environment.due_checkpoints[self.allocation] = ""
        else:
            # One of its nodes may end before the others could be saved.
            self.environment.excuse_checkpoint(self.allocation)
        self.react()

    def kill(self, delay_ms: int) -> None:
        """End the process by force after a while."""
        if self.has_ended or self.is_killed:
            return
        self.is_killed = True
        # Nobody wants its work any more.
        self.environment.excuse_checkpoint(self.allocation)
        self._call_later(delay_ms, lambda: self._exit("killed", signal=9))

    def fence(self) -> None:
        """Kill the process immediately, as its agent's session was replaced: the cluster's
        doing.
        """
        self.cause = self.cause or "another session of its agent began"
        self.kill(0)

    def vanish(self) -> None:
        """Take the process away without an exit."""
        self._action_number += 1
        is_news = not self.has_ended
        self.phase = ProcessPhase.ENDED
        if self._gang is not None and is_news:
            self._gang.handle_node_end(self, "errored", well=False)

    @property
    def must_stop(self) -> bool:
        """Whether the process is to save its work and end."""
        return self.notice is not None or self.directives.get("preempt") is not None

    def react(self) -> None:
        """Do something else, if what the process or another node has got is a reason to."""
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
            # At the end of the workload, which is one batch here.
            self._train_on_to(self._trained_batches() + 1)

    def _wait_for_nodes(self) -> None:
        """Wait for the other nodes."""
        assert self._gang is not None
        self.phase = ProcessPhase.WAITING_FOR_NODES
        if self.must_stop:
            self._exit("preempted")
        else:
            self._gang.add_node(self)

    def _continue(self) -> None:
        """Do what comes next by the directives."""
        assert self._gang is not None
        length, closed = self.directives["length"], self.directives["closed"]
        done = max(self.completed_length, self.directives["answered"])
        if length is not None and length > done:
            if self._gang.must_stop:
                self._save_checkpoint(lambda: self._exit("preempted"))
            elif self.steps >= (end := self._end_batch()):
                self._complete_length(length)
            else:
                self._train(end)
        elif closed:
            self._end()
        elif self._gang.must_stop:
            self._save_checkpoint(lambda: self._exit("preempted"))
        elif length is not None and length <= self.directives["answered"]:
            self._save_checkpoint(lambda: self._exit("idle"))
        else:
            self.phase = ProcessPhase.WAITING_FOR_WORK

    def _end_batch(self) -> int:
        """Return the batch at which the length of the directives ends."""
        assert self.training is not None
        return self.training.length_batches(self.directives)

    def _end(self) -> None:
        """End the process, which has nothing left to train."""
        if self.training is not None and self.spec["restarts"] < self.training.bad_ends_until:
            self._exit("errored", code=1, message="the code fails as it ends")
        else:
            self._exit("completed")

    def _train(self, end: int) -> None:
        assert self.training is not None
        self.phase = ProcessPhase.TRAINING
        self._since_ms = self.environment.clock.now_ms
        self._train_on_to(self.training.next_stop(self.steps, end))

    def _train_on_to(self, stop: int) -> None:
        assert self.training is not None
        failing = self._next_failure(stop)
        stop = stop if failing is None else failing
        due_ms = self._since_ms + ceil((stop - self.steps) * self.training.learning_curve.batch_ms)
        self._call_later(
            due_ms - self.environment.clock.now_ms,
            lambda: self._reach_stop(stop, failing is not None),
        )

    def _trained_batches(self) -> int:
        """Return how many whole batches are done by now."""
        assert self.training is not None
        passed_ms = self.environment.clock.now_ms - self._since_ms
        return self.steps + int(passed_ms / self.training.learning_curve.batch_ms)

    def _next_failure(self, stop: int) -> int | None:
        assert self.training is not None
        fails = self.training.failing_batches
        restarts: int = self.spec["restarts"]
        if restarts < len(fails) and self.steps <= fails[restarts] < stop:
            return fails[restarts]
        return None

    def _reach_stop(self, stop: int, failing: bool) -> None:
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
        assert self.training is not None
        metrics = self.training.metrics(self.steps)
        line = {"group": "validation", "steps_completed": self.steps, "metrics": metrics}
        self.report({"kind": "metrics", **line})
        return metrics

    def _complete_length(self, length: int) -> None:
        """Save, validate, and report that the length is reached."""

        def validate() -> None:
            assert self.training is not None
            metric = self._validate()[self.training.metric]
            if length != ENDLESS:
                self.completed_length = length
                self.report({"kind": "completed", "length": length, "metric": metric})
            self._continue()

        self._save_checkpoint(validate)

    def _save_checkpoint(self, then: Callable[[], None]) -> None:
        """Write a checkpoint unless there is one of this step, and then call `then`."""
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
        """Return how many ms it takes to finish a batch, write a checkpoint and report it."""
        assert self.training is not None
        return ceil(self.training.learning_curve.batch_ms) + self.training.upload_ms + REPORT_MS

    def _exit(self, reason: str, *, code: int = 0, signal: int = 0, message: str = "") -> None:
        if self.has_exit:
            return
        self._action_number += 1
        self.phase = ProcessPhase.ENDED
        if self.notice is not None:
            self.cause = "the machine is about to end"
        notice = {"notice": self.cause} if self.cause else {}
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
        """Call `action` later, instead of what was to be done next."""
        self._action_number += 1
        number = self._action_number

        def run_unless_ended() -> None:
            if self._action_number == number and not self.has_ended:
                action()

        self.environment.clock.call_at(
            self.environment.clock.now_ms + max(0, delay_ms), run_unless_ended
        )
