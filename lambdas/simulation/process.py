"""A trial's process on a simulated machine: it reads directives, trains along its course,
validates, writes checkpoints and reports, as docs/trial-directory.md says.

What it reported lies on the machine's disk, and so survives the agent, but not the machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import Any

from control_plane.searchers.method import ENDLESS
from control_plane.simulation.clock import Clock
from lambdas.simulation.checkpoints import Checkpoints, Stored
from lambdas.simulation.gang import Gang, gangs
from lambdas.simulation.training import Training

Line = dict[str, Any]
AGENT = "agent"
LINE_BYTES = 100
# Within which an agent whose network is well has told of something urgent.
TOLD_MS = 2_000
ENDED_WELL = frozenset({"completed", "idle", "preempted"})
URGENT = frozenset({"checkpoint", "completed", "exited", "container"})


class Doing(Enum):
    """What a process is at."""

    STARTING = "starting"
    MEETING = "meeting"
    TRAINING = "training"
    SAVING = "saving"
    WAITING = "waiting"
    ENDED = "ended"


@dataclass
class Desk:
    """What all processes of a world share. `promised`: of the allocations that were given notice
    in time to write a checkpoint, the checkpoint that they wrote, "" for none yet.
    """

    clock: Clock
    checkpoints: Checkpoints
    gang: Callable[[str, int], Gang] = field(default_factory=gangs)
    promised: dict[str, str] = field(default_factory=dict)

    def excuse(self, allocation: str) -> None:
        """The allocation's checkpoint, if it is still to be written, is expected no more."""
        if self.promised.get(allocation) == "":
            del self.promised[allocation]


@dataclass(frozen=True)
class Notice:
    """The machine ends at `deadline_ms` of the virtual clock."""

    deadline_ms: int


@dataclass
class Process:
    """One node of an allocation. `told` is the agent's ear for new lines. Rank 0 is the chief: it
    alone reports and saves; the others only end when they are told to.
    """

    allocation: str
    desk: Desk
    told: Callable[[bool], None]
    slots: tuple[int, ...] = ()
    rank: int = 0
    training: Training | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    directives: Mapping[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, int, Line]] = field(default_factory=list)
    doing: Doing = Doing.STARTING
    steps: int = 0
    saved_steps: int = -1
    completed: int = 0
    notice: Notice | None = None
    cause: str = ""
    killed: bool = False
    _gang: Gang | None = None
    _offsets: dict[str, int] = field(default_factory=dict)
    _since_ms: int = 0
    _turn: int = 0
    _uploads: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.doing is Doing.ENDED

    @property
    def has_exit(self) -> bool:
        """Whether somebody has written down how it ended."""
        return any(line["kind"] == "exited" for _, _, line in self.lines)

    def report(self, line: Line) -> None:
        """Appends a line to the stream its kind belongs to."""
        writer = AGENT if line["kind"] in ("container", "exited") else "0"
        self._offsets[writer] = self._offsets.get(writer, 0) + LINE_BYTES
        self.lines.append((writer, self._offsets[writer], line))
        self.told(line["kind"] in URGENT)

    def start(self, delay_ms: int) -> None:
        """Begins to train after a while."""
        reference = self.spec["latest_checkpoint"]
        self.steps = self.spec["steps_completed"]
        if reference is not None and reference["trial_id"] == self.spec["trial_id"]:
            self.saved_steps = self.steps
        self._gang = self.desk.gang(self.allocation, self.spec["nodes"])
        self._after(delay_ms, self._meet)

    def begin(self) -> None:
        """All nodes are there."""
        self._run()

    def finish(self, reason: str, delay_ms: int) -> None:
        """Ends as its chief did, or of a node that is gone."""
        code, message = (1, "a node is gone") if reason == "errored" else (0, "")
        self._after(delay_ms, lambda: self._exit(reason, code=code, message=message))

    def fail(self, reason: str, message: str) -> None:
        """Ends without having run."""
        self._exit(reason, message=message)

    def direct(self, directives: Mapping[str, Any]) -> None:
        """What the cluster wishes; an older word than the last one is ignored."""
        if self.directives and directives["revision"] < self.directives["revision"]:
            return
        self.directives = directives
        self.heed()

    def notify(self, notice: Notice) -> None:
        """Its machine ends: what was trained is saved at once, as far as the time allows."""
        if self.ended or self.notice is not None:
            return
        self.notice = notice
        left_ms = notice.deadline_ms - self.desk.clock.now_ms
        if self.doing is Doing.TRAINING and not self.killed and left_ms >= self._needs_ms():
            self.desk.promised[self.allocation] = ""
        else:
            # One of its nodes may end before the others could be saved.
            self.desk.excuse(self.allocation)
        self.heed()

    def kill(self, delay_ms: int) -> None:
        """Is ended by force after a while."""
        if self.ended or self.killed:
            return
        self.killed = True
        # Nobody wants its work any more.
        self.desk.excuse(self.allocation)
        self._after(delay_ms, lambda: self._exit("killed", signal=9))

    def fence(self) -> None:
        """Its agent's session was replaced: it ends at once, which is no doing of its own."""
        self.cause = self.cause or "another session of its agent began"
        self.kill(0)

    def vanish(self) -> None:
        """Is no more, and never said so."""
        self._turn += 1
        is_news = not self.ended
        self.doing = Doing.ENDED
        if self._gang is not None and is_news:
            self._gang.left(self, "errored", well=False)

    @property
    def must_stop(self) -> bool:
        """Whether it is to save its work and end."""
        return self.notice is not None or self.directives.get("preempt") is not None

    def heed(self) -> None:
        """Something that it was told, or another node, may be a reason to do something else."""
        if self.killed or self.ended or self._gang is None:
            return
        if not self._gang.complete:
            if self.doing is Doing.MEETING and self.must_stop:
                self._exit("preempted")
        elif self.rank:
            self._gang.heed()
        elif self.doing is Doing.WAITING:
            self._run()
        elif self.doing is Doing.TRAINING and self._gang.must_stop:
            # At the end of the workload, which is a batch here.
            self._train_on_to(self._trained() + 1)

    def _meet(self) -> None:
        """Waits for the other nodes."""
        assert self._gang is not None
        self.doing = Doing.MEETING
        if self.must_stop:
            self._exit("preempted")
        else:
            self._gang.join(self)

    def _run(self) -> None:
        """Decides what comes next."""
        assert self._gang is not None
        length, closed = self.directives["length"], self.directives["closed"]
        done = max(self.completed, self.directives["answered"])
        if length is not None and length > done:
            if self._gang.must_stop:
                self._save(lambda: self._exit("preempted"))
            elif self.steps >= length:
                self._complete(length)
            else:
                self._train(length)
        elif closed:
            self._exit("completed")
        elif self._gang.must_stop:
            self._save(lambda: self._exit("preempted"))
        elif length is not None and length <= self.directives["answered"]:
            self._save(lambda: self._exit("idle"))
        else:
            self.doing = Doing.WAITING

    def _train(self, length: int) -> None:
        assert self.training is not None
        self.doing = Doing.TRAINING
        self._since_ms = self.desk.clock.now_ms
        self._train_on_to(self.training.next_stop(self.steps, length))

    def _train_on_to(self, stop: int) -> None:
        assert self.training is not None
        failing = self._fails_before(stop)
        stop = stop if failing is None else failing
        due_ms = self._since_ms + ceil((stop - self.steps) * self.training.course.batch_ms)
        self._after(due_ms - self.desk.clock.now_ms, lambda: self._stop(stop, failing is not None))

    def _trained(self) -> int:
        """Whole batches that are done by now."""
        assert self.training is not None
        passed_ms = self.desk.clock.now_ms - self._since_ms
        return self.steps + int(passed_ms / self.training.course.batch_ms)

    def _fails_before(self, stop: int) -> int | None:
        assert self.training is not None
        fails = self.training.fails_at
        restarts: int = self.spec["restarts"]
        if restarts < len(fails) and self.steps <= fails[restarts] < stop:
            return fails[restarts]
        return None

    def _stop(self, stop: int, failing: bool) -> None:
        training, length = self.training, self.directives["length"]
        assert training is not None
        self.steps = stop
        if failing:
            self._exit("errored", code=1, message=f"the code fails at batch {stop}")
            return
        if length is None or stop < length:
            if training.validation_period and stop % training.validation_period == 0:
                self._validate()
            if training.checkpoint_period and stop % training.checkpoint_period == 0:
                self._save(self._run)
                return
        self._run()

    def _validate(self) -> dict[str, float | None]:
        assert self.training is not None
        metrics = self.training.metrics(self.steps)
        line = {"group": "validation", "steps_completed": self.steps, "metrics": metrics}
        self.report({"kind": "metrics", **line})
        return metrics

    def _complete(self, length: int) -> None:
        """Saves, validates, and says that it is there."""

        def saved() -> None:
            assert self.training is not None
            metric = self._validate()[self.training.metric]
            if length != ENDLESS:
                self.completed = length
                self.report({"kind": "completed", "length": length, "metric": metric})
            self._run()

        self._save(saved)

    def _save(self, then: Callable[[], None]) -> None:
        """Writes a checkpoint unless there is one of this step."""
        if self.saved_steps >= self.steps or self.training is None:
            then()
            return
        self.doing = Doing.SAVING
        self._uploads += 1
        trial_id, epoch = map(int, self.allocation.split("."))
        uuid = f"{trial_id:08x}-{epoch:04x}-4000-8000-{self._uploads:012x}"
        path = f"{self.spec['experiment_id']}/{trial_id}/{epoch}/{uuid}"
        fields = {"uuid": uuid, "steps_completed": self.steps, "path": path}
        self.report({"kind": "checkpoint_intent", **fields})
        self._after(self.training.upload_ms, lambda: self._saved(fields, then))

    def _saved(self, fields: Line, then: Callable[[], None]) -> None:
        training = self.training
        assert training is not None
        self.saved_steps = self.steps
        stored = Stored(
            uuid=fields["uuid"],
            path=fields["path"],
            steps=self.steps,
            batches=training.begun_with + self.steps,
            size_bytes=training.checkpoint_bytes,
        )
        self.desk.checkpoints.complete(stored)
        if self.desk.promised.get(self.allocation) == "":
            self.desk.promised[self.allocation] = stored.uuid
        line = {"size_bytes": stored.size_bytes, "files": 1, "manifest_sha256": "0" * 64}
        self.report({"kind": "checkpoint", **fields, **line, "metadata": {}})
        then()

    def _needs_ms(self) -> int:
        """To finish a batch, write a checkpoint and tell the cluster of it."""
        assert self.training is not None
        return ceil(self.training.course.batch_ms) + self.training.upload_ms + TOLD_MS

    def _exit(self, reason: str, *, code: int = 0, signal: int = 0, message: str = "") -> None:
        if self.has_exit:
            return
        self._turn += 1
        self.doing = Doing.ENDED
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
            self._gang.left(self, reason, well=reason in ENDED_WELL)

    def _after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Does something later, instead of what was to be done."""
        self._turn += 1
        turn = self._turn

        def due() -> None:
            if self._turn == turn and not self.ended:
                action()

        self.desk.clock.at(self.desk.clock.now_ms + max(0, delay_ms), due)
