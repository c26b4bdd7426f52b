"""The plan of a synchronisation: one rule for each pair of changes."""

from __future__ import annotations

import pytest

from detcloud.shared.folder_sync.plan import (
    CLASHING,
    FILE_AND_FOLDER,
    Action,
    DeleteHere,
    DeleteThere,
    Fetch,
    KeepBoth,
    Listing,
    Send,
    plan_actions,
)


@pytest.mark.parametrize(
    ("before", "mine", "theirs", "action"),
    [
        (None, "1", None, Send("a", "1", None)),
        (None, None, "1", Fetch("a", "1", None)),
        ("1", "2", "1", Send("a", "2", "1")),
        ("1", "1", "2", Fetch("a", "2", "1")),
        ("1", None, "1", DeleteThere("a", "1")),
        ("1", "1", None, DeleteHere("a", "1")),
        # A changed file wins against a deletion.
        ("1", None, "2", Fetch("a", "2", None)),
        ("1", "2", None, Send("a", "2", None)),
        ("1", "2", "3", KeepBoth("a", "2", "3", "a.detcloud-theirs", False)),
        (None, "2", "3", KeepBoth("a", "2", "3", "a.detcloud-theirs", False)),
        ("1", "2", "2", None),
        ("1", None, None, None),
    ],
)
def test_action_follows_from_the_changes_of_both_sides(
    before: str | None, mine: str | None, theirs: str | None, action: Action | None
) -> None:
    common = {"a": before} if before else {}
    here, there = (Listing({"a": digest} if digest else {}) for digest in (mine, theirs))
    plan = plan_actions(common, here, there)
    assert plan.actions == (() if action is None else (action,))


def test_copy_of_a_conflict_replaces_no_file() -> None:
    here = Listing({"a": "2", "a.detcloud-theirs": "9"})
    [conflict, other] = plan_actions({}, here, Listing({"a": "3"})).actions
    assert conflict == KeepBoth("a", "2", "3", "a.detcloud-theirs-2", False)
    assert other == Send("a.detcloud-theirs", "9", None)


def test_existing_copy_of_a_conflict_is_used_again() -> None:
    here = Listing({"a": "2", "a.detcloud-theirs": "3"})
    [conflict, _] = plan_actions({}, here, Listing({"a": "3"})).actions
    assert conflict == KeepBoth("a", "2", "3", "a.detcloud-theirs", True)


def test_files_below_an_unknown_folder_stay() -> None:
    common = {"a/b": "1", "a": "1"}
    plan = plan_actions(common, Listing({}, frozenset({"a"})), Listing({"a/b": "1"}))
    assert plan.actions == ()
    assert plan.common == common


def test_file_on_one_side_and_folder_on_the_other_stay() -> None:
    plan = plan_actions({}, Listing({"a": "1"}), Listing({"a/b": "2"}))
    assert plan.actions == ()
    assert plan.blocked == dict.fromkeys(("a", "a/b"), FILE_AND_FOLDER)


@pytest.mark.parametrize(
    ("mine", "theirs"), [("a", "A"), ("a/b", "A/c"), ("\u00e9", "e\u0301"), ("a/x/b", "a/X")]
)
def test_names_that_may_be_equal_on_a_file_system_stay(mine: str, theirs: str) -> None:
    """A Mac would write the machine's file over the user's file."""
    plan = plan_actions({mine: "1"}, Listing({mine: "1"}), Listing({mine: "1", theirs: "2"}))
    assert (plan.actions, plan.blocked) == ((), {theirs: CLASHING})


def test_changed_case_of_a_name_is_a_deletion_before_a_new_file() -> None:
    plan = plan_actions({"a": "1"}, Listing({"a": "1"}), Listing({"A": "1"}))
    assert plan.actions == (DeleteHere("a", "1"), Fetch("A", "1", None))


def test_copy_of_a_conflict_takes_no_name_of_a_folder() -> None:
    here = Listing({"a": "2", "a.detcloud-theirs/b": "1"})
    there = Listing({"a": "3", "a.detcloud-theirs/b": "1"})
    [conflict] = plan_actions({}, here, there).actions
    assert conflict == KeepBoth("a", "2", "3", "a.detcloud-theirs-2", False)


def test_file_takes_the_place_of_a_folder_after_the_deletions() -> None:
    plan = plan_actions({"a/b": "1"}, Listing({"a": "2"}), Listing({"a/b": "1"}))
    assert plan.actions == (DeleteThere("a/b", "1"), Send("a", "2", None))


def test_copy_that_the_machine_has_deleted_is_not_used_again() -> None:
    """The plan deletes such a copy here, and its content would be lost with the machine's file."""
    copy = "a.detcloud-theirs"
    plan = plan_actions({copy: "3"}, Listing({"a": "2", copy: "3"}), Listing({"a": "3"}))
    assert plan.actions == (
        DeleteHere(copy, "3"),
        KeepBoth("a", "2", "3", "a.detcloud-theirs-2", False),
    )


def test_ten_thousand_files_become_as_many_actions() -> None:
    files = {f"{number % 100}/{number}": "1" for number in range(10_000)}
    assert len(plan_actions({}, Listing(files), Listing({})).actions) == 10_000
