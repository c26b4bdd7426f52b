import pytest

from control_plane.actors.records import Retention
from control_plane.checkpoint_gc.ranking import CheckpointCandidate, unwanted_checkpoints


def candidate(
    uuid: str, trial_id: int, steps: int, metric: float | None, created_ms: int | None = None
) -> CheckpointCandidate:
    return CheckpointCandidate(
        uuid, trial_id, steps, metric, steps if created_ms is None else created_ms
    )


# Two trials. By loss, smallest first: b 0.1, f 0.2, a 0.3, d 0.4, e 0.5; c and g have no loss.
# Latest first: c (30), b (20), a (10) of trial 1; g (40), f (30), e (20), d (10) of trial 2.
ALL = [
    candidate("a", 1, 10, 0.3),
    candidate("b", 1, 20, 0.1),
    candidate("c", 1, 30, None),
    candidate("d", 2, 10, 0.4),
    candidate("e", 2, 20, 0.5),
    candidate("f", 2, 30, 0.2),
    candidate("g", 2, 40, None),
]


def kept_uuids(
    retention: tuple[int, int, int],
    candidates: list[CheckpointCandidate] = ALL,
    *,
    smaller_is_better: bool = True,
    held: str = "",
) -> str:
    """Return the letters of the kept checkpoints, sorted."""
    going = unwanted_checkpoints(
        candidates,
        Retention(*retention),
        smaller_is_better,
        lambda checkpoint: checkpoint.uuid in held,
    )
    gone = {checkpoint.uuid for checkpoint in going}
    return "".join(
        sorted(checkpoint.uuid for checkpoint in candidates if checkpoint.uuid not in gone)
    )


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        # (best of the experiment, best of a trial, latest of a trial)
        ((0, 0, 0), ""),
        ((0, 0, 1), "cg"),
        ((0, 0, 2), "bcfg"),
        ((0, 1, 0), "bf"),
        ((0, 2, 0), "abdf"),
        ((1, 0, 0), "b"),
        ((2, 0, 0), "bf"),
        ((3, 0, 0), "abf"),
        # Best of all b; best of each b and f; latest of each c and g.
        ((0, 1, 1), "bcfg"),
        ((1, 1, 1), "bcfg"),
        # Best three b f a; best of each b and f; latest of each c and g.
        ((3, 1, 1), "abcfg"),
        # No number of best checkpoints keeps a checkpoint without a metric.
        ((100, 100, 0), "abdef"),
        ((100, 100, 100), "abcdefg"),
    ],
)
def test_union_of_the_three_rules_is_kept(retention: tuple[int, int, int], expected: str) -> None:
    assert kept_uuids(retention) == expected


def test_largest_metrics_are_kept_if_larger_is_better() -> None:
    # e 0.5, d 0.4, a 0.3, f 0.2, b 0.1: e is the best of all and of trial 2, a of trial 1.
    assert kept_uuids((1, 0, 0), smaller_is_better=False) == "e"
    assert kept_uuids((0, 1, 0), smaller_is_better=False) == "ae"


def test_older_checkpoint_wins_among_equal_metrics() -> None:
    twins = [candidate("z", 1, 10, 0.5), candidate("a", 1, 20, 0.5), candidate("m", 2, 5, 0.5)]
    # Created at 5 (m), 10 (z), 20 (a).
    assert kept_uuids((1, 0, 0), twins) == "m"
    assert kept_uuids((2, 0, 0), twins) == "mz"
    assert kept_uuids((0, 1, 0), twins) == "mz"


def test_trial_step_and_uuid_break_ties_of_creation_time() -> None:
    at_once = [
        candidate("d", 1, 10, 0.5, 7),
        candidate("c", 1, 20, 0.5, 7),
        candidate("b", 1, 20, 0.5, 7),
        candidate("a", 2, 5, 0.5, 7),
    ]
    # d (trial 1, step 10), b and c (trial 1, step 20), a (trial 2).
    assert [kept_uuids((n, 0, 0), at_once) for n in range(5)] == ["", "d", "bd", "bcd", "abcd"]


def test_newer_checkpoint_of_equal_steps_is_the_latest() -> None:
    # A trial that was set back writes a second checkpoint of a step.
    repeated = [candidate("a", 1, 10, None, 1), candidate("b", 1, 10, None, 2)]
    assert kept_uuids((0, 0, 1), repeated) == "b"


def test_held_checkpoint_stays_without_moving_ranks() -> None:
    # a is the third best. Holding a does not move up the fourth, d.
    assert kept_uuids((3, 0, 0), held="d") == "abdf"
    assert kept_uuids((2, 0, 0), held="a") == "abf"
    assert kept_uuids((0, 0, 0), held="abcdefg") == "abcdefg"


def test_only_unranked_checkpoints_are_checked_for_holds() -> None:
    checked: list[str] = []

    def is_held(checkpoint: CheckpointCandidate) -> bool:
        checked.append(checkpoint.uuid)
        return False

    unwanted_checkpoints(ALL, Retention(1, 1, 1), True, is_held)
    assert sorted(checked) == ["a", "d", "e"]


def test_empty_list_has_no_unwanted_checkpoint() -> None:
    assert unwanted_checkpoints([], Retention(1, 1, 1), True, lambda checkpoint: False) == []


def test_unwanted_checkpoints_are_grouped_by_trial() -> None:
    mixed = [ALL[3], ALL[0], ALL[4], ALL[1]]
    going = unwanted_checkpoints(mixed, Retention(0, 0, 0), True, lambda checkpoint: False)
    assert [checkpoint.trial_id for checkpoint in going] == [1, 1, 2, 2]
