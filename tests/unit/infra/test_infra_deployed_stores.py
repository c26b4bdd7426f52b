"""The check of a deployed stack's stores before a deployment."""

from dataclasses import replace
from typing import Any

import pytest

from infra.aws.program import PROGRAM
from infra.deployed_stores import RefreshChoice, needs_refresh
from infra.engine import DeployFailed
from infra.findings import Unknown
from infra.stack_program import Store

FINE = [Store("table", "t", True), Store("bucket", "b", True)]
LOST = [Store("table", "t", False), Store("bucket", "b", True)]
APART = [Store("table", "t", True, "its stream does not invoke t-tick; connecting it again")]
BUSY = [Store("table", "t", True, refusal="a restore has not finished")]


def ask(
    stores: list[Store] | Unknown,
    *,
    refresh: bool = False,
    new_stores: bool = False,
    is_deployed: bool = True,
) -> tuple[bool, list[str]]:
    """Return whether a refresh is needed, and the reported lines."""
    lines: list[str] = []
    program = replace(PROGRAM, read_stores=lambda team, config: stores)
    choice = RefreshChoice("aws", refresh, new_stores)
    needed = needs_refresh(program, "vision", {}, choice, lines.append, is_deployed=is_deployed)
    return needed, lines


def test_unchanged_stores_need_no_refresh() -> None:
    assert ask(FINE) == (False, [])
    assert ask(FINE, refresh=True) == (True, [])


def test_stores_of_a_new_stack_are_not_read() -> None:
    assert ask(LOST, is_deployed=False) == (False, [])


def test_restored_table_needs_a_refresh() -> None:
    line = "the table t: its stream does not invoke t-tick; connecting it again"
    assert ask(APART) == (True, [line])


def test_lost_store_is_not_replaced_silently() -> None:
    with pytest.raises(DeployFailed) as caught:
        ask(LOST, refresh=True)
    assert str(caught.value) == (
        "the table t had been deployed and no longer exists, so nothing was deployed: a deployment "
        "would create an empty replacement, and the cluster would lose its state. `detcloud deploy "
        "restore aws --team vision` restores a table or database from a backup (docs/recovery.md). "
        "`--new-stores` creates what is lost again, empty; then `detcloud deploy restore aws "
        "--team vision --objects` restores the objects of buckets from copies"
    )


def test_lost_store_is_created_again_on_request() -> None:
    line = "the table t is lost and will be created again, empty"
    assert ask(LOST, new_stores=True) == (True, [line])


def test_new_bucket_names_the_command_that_fills_it() -> None:
    _, lines = ask([Store("bucket", "b", False)], new_stores=True)
    assert lines[-1] == (
        "after this deployment, restore the objects from the copies, and list the lost "
        "checkpoints: `detcloud deploy restore aws --team vision --objects`"
    )


def test_unfinished_restore_refuses_deployments() -> None:
    with pytest.raises(DeployFailed, match="a restore has not finished, so nothing was deployed"):
        ask(BUSY, new_stores=True)


@pytest.mark.parametrize("refresh", [False, True])
def test_unreadable_stores_are_a_warning(refresh: bool) -> None:
    line = "warning: the stores could not be checked: denied; needs s3:ListBucket"
    assert ask(Unknown("s3:ListBucket", "denied"), refresh=refresh) == (refresh, [line])
    new: Any = ask(Unknown("s3:ListBucket", "denied"), new_stores=True)
    assert new == (True, [line])
