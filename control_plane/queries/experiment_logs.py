"""Query of the log lines of all trials of an experiment.

The costs of a request are bounded for any number of trials. A request reads the trials one after
another, and therefore sorts only the lines of a page by time. A reader who wants all lines in the
order of time reads all pages of a short period, and sorts the lines.
"""

from collections.abc import Iterable, Sequence

from control_plane.actors.trial.state import TrialState
from control_plane.agents.log_scan import LineFilter, LogPosition
from control_plane.agents.log_slices import DISORDER_MS, SliceSearch
from control_plane.agents.logs import TrialLogs
from control_plane.errors import invalid
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.services import Services

STATES_MAX = 200
"""The number of trials whose states a request reads."""
_LIST = "experiment-lines"


class TrialLine(Answer):
    """A line of a trial's log.

    `offset` is the offset of the first byte in the log of trial `trial_id`. `time_ms` is the time
    at which the agent first saw the line, or null if unknown. `level` is null for a line without a
    level.
    """

    trial_id: int
    offset: int
    time_ms: int | None
    rank: int
    level: str | None
    text: str


def find_experiment_lines(
    services: Services,
    experiment_id: int,
    page: PageRequest,
    line_filter: LineFilter,
    trials: Sequence[int] = (),
) -> Page[TrialLine]:
    """Find lines of the logs of an experiment's trials. The lines of a page are sorted by time.

    A page with a cursor may be short or empty. A request reads at most STATES_MAX states of trials,
    and searches the logs within the limits of `SliceSearch`. Trials that did not run in the
    filter's period are skipped without a look at their logs.

    Args:
        services: the services that read trials and logs.
        experiment_id: the experiment.
        page: the request.
        line_filter: the conditions that the lines meet.
        trials: ids of trials of the experiment, without repetitions. Empty for all trials.

    Raises:
        RequestError: not_found, if the experiment does not exist. invalid, for a cursor of another
            list, or if a trial of `trials` is not a trial of the experiment.
        TableError, OSError: the state table or the object store failed.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    after = page.start_after(_LIST, (int, int, int))
    number, offset, is_inside = (0, 0, 0) if after is None else map(int, after)
    count = len(trials) or state.trials
    end = min(count, max(0, number) + STATES_MAX)
    position = LogPosition(max(0, offset), bool(is_inside))
    numbered: Iterable[tuple[int, int]] = (
        list(enumerate(trials))[max(0, number) : end]
        if trials
        else [
            (place, summary.trial_id)
            for place, summary in experiments.trial_summaries(services, state, max(0, number), end)
        ]
    )
    heads = services.experiments.read_trials([trial_id for _, trial_id in numbered])
    if trials:
        _check_trials(experiment_id, trials, heads, max(0, number))
    search = SliceSearch(TrialLogs(services.table, services.objects), line_filter, page.limit)
    cursor = encode_cursor(_LIST, (end, 0, 0)) if end < count else None
    for (place, trial_id), head in zip(numbered, heads, strict=True):
        start = position if place == number else LogPosition()
        if head is None or head.deleted or not _ran_in_period(head, line_filter):
            continue
        if search.is_over:
            cursor = encode_cursor(_LIST, (place, *map(int, start)))
            break
        following = search.read_trial(trial_id, head.epoch, start, ended=head.status.is_final)
        if following is not None:
            cursor = encode_cursor(_LIST, (place, *map(int, following)))
            break
    lines = sorted(
        search.lines, key=lambda found: (found[1].time_ms or 0, found[0], found[1].offset)
    )
    items = [
        TrialLine(
            trial_id=trial_id,
            offset=line.offset,
            time_ms=line.time_ms,
            rank=line.rank,
            level=line.level,
            text=line.text,
        )
        for trial_id, line in lines
    ]
    return Page(items=items, next_cursor=cursor)


def _check_trials(
    experiment_id: int, trials: Sequence[int], heads: Sequence[TrialState | None], first: int
) -> None:
    """Raise RequestError invalid unless each head is a trial of the experiment.

    Args:
        experiment_id: the experiment.
        trials: the requested trials.
        heads: the states of the trials from number `first` on.
        first: the place in `trials` of the first head.
    """
    for trial_id, head in zip(trials[first:], heads, strict=False):
        if head is None or head.experiment_id != experiment_id:
            raise invalid(
                "trial",
                f"{trial_id} is not a trial of experiment {experiment_id}",
                f"list the trials with GET /experiments/{experiment_id}/trials",
            )


def _ran_in_period(head: TrialState, line_filter: LineFilter) -> bool:
    """Return whether a trial existed in the period of the filter, and may have logged."""
    if line_filter.until_ms is not None and head.created_ms > line_filter.until_ms + DISORDER_MS:
        return False
    if line_filter.since_ms is None or head.ended_ms is None:
        return True
    return head.ended_ms + DISORDER_MS >= line_filter.since_ms
