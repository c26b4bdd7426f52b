"""Query of the importance of an experiment's hyperparameters."""

from dataclasses import dataclass
from threading import Lock

from control_plane.bounded_cache import BoundedCache
from control_plane.importance.axes import flatten_hparams, flatten_space
from control_plane.importance.fanova import (
    TRIALS_MIN,
    TRIALS_SURE,
    Assessment,
    assess_importance,
)
from control_plane.queries.answer import Answer
from control_plane.queries.experiment import get_experiment
from control_plane.queries.results import ResultLength, Results, ResultsCache
from control_plane.services import Services
from detcloud.shared.plurals import count_text

# The most bytes of cached answers. An answer has a few KB.
ANSWER_BYTES_MAX = 1_000_000
# While results of a running search arrive, an answer is kept for this many times the duration of
# its computation. At most a twentieth of a processor then computes the importance of a search.
KEPT_DURATIONS = 20
EXPLAINED_MIN = 0.2
"""The explained share of the variance below which a note warns of noise."""


class HparamImportance(Answer):
    """The importance of a hyperparameter; docs/api.md describes the fields."""

    name: str
    share: float
    low: float
    high: float


class Importance(Answer):
    """The importance of an experiment's hyperparameters; docs/api.md describes the fields."""

    metric: str
    smaller_is_better: bool | None
    unit: str
    at: int | None
    lengths: list[ResultLength]
    trials: int
    trials_left_out: int
    trials_min: int
    explained: float | None
    interactions: float | None
    note: str
    items: list[HparamImportance]


@dataclass(frozen=True, slots=True)
class _KeptAnswer:
    """A cached answer."""

    results: Results
    """The results of the answer."""
    until_ms: int
    """The time, in epoch ms, until which the answer is also used for newer results."""
    answer: Importance


class ImportanceCache:
    """Cache of the latest answers about importance. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: BoundedCache[tuple[int, str | None, int | None], _KeptAnswer]
        self._kept = BoundedCache(ANSWER_BYTES_MAX)

    def find_importance(
        self, services: Services, experiment_id: int, metric: str | None, at: int | None
    ) -> Importance:
        """Return the importance of an experiment's hyperparameters.

        The answer may be older than the latest results by KEPT_DURATIONS times the duration of its
        computation. `trials` is the number of results that the answer contains.

        Args:
            services: the services that read the experiment and metrics.
            experiment_id: the experiment.
            metric: the name of a validation metric; None for the searcher metric.
            at: the length in the unit of the answer; None for the default length.

        Raises:
            RequestError: not_found, if the experiment does not exist; invalid, for a metric without
                results by length.
            OSError: the object store does not answer.
            ValueError: a newer release has encoded a row of metrics.
        """
        key = experiment_id, metric, at
        results = services.cache_of(ResultsCache).find_results(services, experiment_id, metric, at)
        with self._lock:
            began_ms = services.now_ms()
            kept = self._kept.find(key)
            if kept is not None and (kept.results is results or began_ms < kept.until_ms):
                return kept.answer
            answer = _find_importance(services, experiment_id, results)
            now_ms = services.now_ms()
            until_ms = now_ms + KEPT_DURATIONS * (now_ms - began_ms)
            self._kept.keep(key, _KeptAnswer(results, until_ms, answer), 200 * len(answer.items))
            return answer


def _find_importance(services: Services, experiment_id: int, results: Results) -> Importance:
    """Compute the importance from results."""
    assessment: Assessment | None = None
    if len(results.items) >= TRIALS_MIN:
        _, definition = get_experiment(services, experiment_id)
        assessment = assess_importance(
            [flatten_hparams(item.hparams) for item in results.items],
            [item.metric for item in results.items],
            flatten_space(definition.plan.space),
        )
    found = assessment.hparams if assessment else ()
    return Importance(
        metric=results.metric,
        smaller_is_better=results.smaller_is_better,
        unit=results.unit,
        at=results.at,
        lengths=list(results.lengths),
        trials=len(results.items),
        trials_left_out=results.trials_left_out,
        trials_min=TRIALS_MIN,
        explained=assessment.explained if assessment else None,
        interactions=assessment.interactions if assessment else None,
        note=_note(results, assessment),
        items=[
            HparamImportance(name=item.name, share=item.share, low=item.low, high=item.high)
            for item in found
        ],
    )


def _note(results: Results, assessment: Assessment | None) -> str:
    """Return sentences about the limits of the answer, for users. Return "" without limits."""
    if results.at is None:
        return f"No trial has a result of {results.metric} yet."
    count = len(results.items)
    if count < TRIALS_MIN:
        have = count_text(count, "trial has", "trials have")
        return (
            f"Importance needs {TRIALS_MIN} trials with a result at one length; {have} a result "
            f"at {results.at} {results.unit}. With fewer trials, chance often decides which "
            "hyperparameter is the first."
        )
    sentences: list[str] = []
    if assessment is None:
        is_constant = len({item.metric for item in results.items}) == 1
        subject = f"All trials have the same {results.metric}" if is_constant else ""
        sentences.append(f"{subject or 'No hyperparameter differs between the trials'}.")
    elif assessment.explained < EXPLAINED_MIN:
        percent = max(0, round(100 * assessment.explained))
        sentences.append(
            f"The hyperparameters predict only {percent} % of the variance of {results.metric} in "
            "trials that the model has not seen, so that these shares may be those of noise."
        )
    if assessment is not None and count < TRIALS_SURE:
        sentences.append(
            f"With fewer than {TRIALS_SURE} trials, an effect that rises and falls is often missed."
        )
    if results.trials_left_out:
        total = count + results.trials_left_out
        sentences.append(f"{count} of {total} trials were used, spread evenly over the search.")
    return " ".join(sentences)
