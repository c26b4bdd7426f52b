"""Query of the only run of a command, notebook or shell: program, agent and exit code."""

import shlex
from collections.abc import Sequence

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.experiment.trial_summaries import Summaries, part_name
from control_plane.actors.records import JobKind
from control_plane.actors.trial.state import TrialState
from control_plane.engine.actor_types import parse_json
from control_plane.queries.answer import Answer
from control_plane.services import Services
from detcloud.shared.masking import mask_urls

PROGRAM_CHARACTERS_MAX = 1_000


class RunSnapshot(Answer):
    """The last snapshot of a notebook's or shell's folder, with the size in the store."""

    uuid: str
    size_bytes: int
    saved_ms: int


class SingleRun(Answer):
    """The run of a command, notebook or shell.

    `program` is the shell command line of a command, cut at 1,000 characters; null for a notebook
    or shell. `agent_id` is null while the run waits for slots. `exit_code` is null unless the
    program ended by itself. `ends_ms` is the time at which a run with slots comes to its
    `max_duration`; null without slots or limit. `snapshot` is the last snapshot of the folder; null
    without a snapshot.
    """

    trial_id: int
    program: str | None
    agent_id: str | None
    exit_code: int | None
    ends_ms: int | None = None
    snapshot: RunSnapshot | None = None


def read_single_runs(
    services: Services, experiments: Sequence[tuple[ExperimentState, Definition]]
) -> list[SingleRun | None]:
    """Read the run of each job, in the order of `experiments`.

    None for a job of kind experiment, for a job whose trial is not created yet, and for a deleted
    trial. The rows of all jobs are read together.
    """
    ids = [
        experiment_state.experiment_id
        for experiment_state, _ in experiments
        if experiment_state.kind is not JobKind.EXPERIMENT
    ]
    places = [(addresses.experiment(number), part_name(0)) for number in ids]
    parts = services.engine.read_parts(places)
    trial_ids = {
        number: part.trials[0].trial_id
        for number, part in zip(ids, parts, strict=True)
        if isinstance(part, Summaries) and part.trials
    }
    trials = dict(zip(trial_ids, services.experiments.read_trials(trial_ids.values()), strict=True))
    return [
        _run_of(trials.get(experiment[0].experiment_id), *experiment) for experiment in experiments
    ]


def _run_of(
    trial: TrialState | None, state: ExperimentState, definition: Definition
) -> SingleRun | None:
    """Return the run of a command, notebook or shell, given the job's only trial.

    None without a trial and for a deleted trial.
    """
    if trial is None or trial.deleted:
        return None
    agents = () if trial.allocation is None else trial.allocation.agents
    return SingleRun(
        trial_id=trial.trial_id,
        program=_program(definition) if state.kind is JobKind.COMMAND else None,
        agent_id=next(iter(agents), trial.final_agent) or None,
        exit_code=trial.exit_code,
        ends_ms=_end_ms(trial),
        snapshot=_snapshot(trial),
    )


def _snapshot(trial: TrialState) -> RunSnapshot | None:
    """Return the last snapshot of the folder. None without a snapshot, and for a deleted one."""
    last = trial.snapshot
    if last is None or last.is_deleted:
        return None
    return RunSnapshot(
        uuid=last.checkpoint.uuid, size_bytes=last.size_bytes, saved_ms=last.saved_ms
    )


def _end_ms(trial: TrialState) -> int | None:
    """Return the time at which the present run reaches `max_duration`; null without the limit."""
    duration_ms = trial.settings.max_duration_ms
    allocation = trial.allocation
    if duration_ms is None or allocation is None or not allocation.placed_ms:
        return None
    return allocation.placed_ms + duration_ms


def _program(definition: Definition) -> str:
    """Return the shell command line of a command, with masked URLs, cut to
    PROGRAM_CHARACTERS_MAX.
    """
    # Only the entrypoint is needed: parsing the JSON is faster than checking the whole
    # configuration again.
    words = parse_json(definition.config.encode())["config"]["entrypoint"]
    text = words if isinstance(words, str) else shlex.join(words)
    return mask_urls(text)[:PROGRAM_CHARACTERS_MAX]
