"""The rule for kept checkpoints, compared with the original wording of the rule."""

from hypothesis import given
from hypothesis import strategies as st

from control_plane.actors.records import Retention
from control_plane.checkpoint_gc.ranking import CheckpointCandidate, unwanted_checkpoints

INFINITY = float("inf")

counts = st.integers(0, 6)
retentions = st.builds(Retention, counts, counts, counts)
metrics = st.none() | st.integers(-3, 3).map(float) | st.floats(allow_nan=False, width=32)


@st.composite
def experiments(draw: st.DrawFn) -> list[CheckpointCandidate]:
    """Return checkpoints with few distinct values, so that ties occur."""
    few = st.integers(0, 4)
    count = draw(st.integers(0, 25))
    return [
        CheckpointCandidate(f"{n:04x}", draw(few), draw(few), draw(metrics), draw(few))
        for n in range(count)
    ]


def expected_rank(among: list[CheckpointCandidate], one: CheckpointCandidate, sign: int) -> int:
    """Return the rank by signed metric, from 1; missing metrics last, older checkpoints first."""

    def key(other: CheckpointCandidate) -> tuple[object, ...]:
        missing = other.metric is None
        return missing, 0.0 if other.metric is None else sign * other.metric, other.age

    return sorted(among, key=key).index(one) + 1


def is_deleted(
    everything: list[CheckpointCandidate], one: CheckpointCandidate, retention: Retention, sign: int
) -> bool:
    """Apply the rule to a single checkpoint."""
    of_trial = [other for other in everything if other.trial_id == one.trial_id]
    latest = sorted(of_trial, key=lambda other: (other.steps, other.age), reverse=True)
    if latest.index(one) + 1 <= retention.save_trial_latest:
        return False
    is_best = (
        expected_rank(everything, one, sign) <= retention.save_experiment_best
        or expected_rank(of_trial, one, sign) <= retention.save_trial_best
    )
    return not is_best or one.metric is None


@given(experiments(), retentions, st.booleans(), st.sets(st.integers(0, 24)))
def test_deleted_checkpoints_follow_the_rule_and_exclude_pinned_checkpoints(
    everything: list[CheckpointCandidate], retention: Retention, smaller: bool, held: set[int]
) -> None:
    names = {f"{n:04x}" for n in held}
    unwanted = unwanted_checkpoints(everything, retention, smaller, lambda one: one.uuid in names)
    sign = 1 if smaller else -1
    expected = {
        one.uuid
        for one in everything
        if is_deleted(everything, one, retention, sign) and one.uuid not in names
    }
    assert {one.uuid for one in unwanted} == expected


@given(experiments(), retentions, st.booleans(), st.data())
def test_interrupted_collection_ends_with_the_same_result(
    everything: list[CheckpointCandidate], retention: Retention, smaller: bool, data: st.DataObject
) -> None:
    going = unwanted_checkpoints(everything, retention, smaller, lambda one: False)
    gone = set(data.draw(st.sets(st.sampled_from([one.uuid for one in going])))) if going else set()
    left = [one for one in everything if one.uuid not in gone]
    again = unwanted_checkpoints(left, retention, smaller, lambda one: False)
    assert gone | {one.uuid for one in again} == {one.uuid for one in going}
