"""Rollback of a stack on Google Cloud, and deletion of old revisions."""

from typing import Any

import pytest

from infra.drain_clock import Clock
from infra.gcp.google_api import GoogleError
from infra.gcp.names import Names
from infra.gcp.pruning import prune_revisions
from infra.gcp.rollback import RUN, move_functions
from infra.stack_program import PruneFailed, RollbackFailed
from lambdas.gcp.function_names import FUNCTIONS
from tests.unit.infra.google_answers import Answer, Answers

NAMES = Names("vision", "acme-ml", "123456789012", "us-central1")


def services(*deployments: str, live: int | None = None, without: str = "") -> Answers:
    """Services with a revision for each deployment, the oldest first.

    Requests go to the latest revision, or to revision number `live`. The service of `without` lacks
    the oldest revision.
    """
    table: dict[tuple[str, str], Answer] = {}
    for name in FUNCTIONS:
        service = NAMES.part(name)
        revisions = [
            {
                "name": f"projects/p/revisions/{service}-{number}",
                "createTime": f"2026-01-0{number + 1}T00:00:00Z",
                "labels": {"detcloud-deployment": deployment},
            }
            for number, deployment in enumerate(deployments)
        ]
        if name == without:
            del revisions[0]
        latest = f"projects/p/revisions/{service}-{len(deployments) - 1}"
        traffic: dict[str, Any] = {"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}
        if live is not None:
            traffic = {"revision": f"{service}-{live}", "percent": 100}
        # Google lists the newest first.
        table["GET", f"services/{service}/revisions"] = {"revisions": revisions[::-1]}
        table["GET", f"services/{service}"] = {
            "etag": f"e-{name}",
            "latestReadyRevision": latest,
            "traffic": [traffic],
        }
        table["PATCH", f"services/{service}"] = {"name": f"projects/p/operations/{name}"}
        table["GET", f"operations/{name}"] = {"done": True}
        for number in range(len(deployments)):
            table["DELETE", f"revisions/{service}-{number}"] = {}
    return Answers(table)


def test_rollback_moves_all_services_and_the_api_last() -> None:
    api, lines = services("one", "two"), list[str]()
    moves = move_functions(NAMES, api, lines.append)
    assert [move.function for move in moves] == [
        "advance",
        "tick",
        "wake",
        "checkpoint_gc",
        "suggest",
        "api",
    ]
    last = moves[-1]
    assert (last.before, last.after) == ("detcloud-vision-api-1", "detcloud-vision-api-0")
    assert last.deployment == "one"
    patches = [(url, body) for method, url, body in api.calls if method == "PATCH"]
    url, body = patches[-1]
    assert url.endswith("services/detcloud-vision-api?updateMask=traffic")
    assert body == {
        "traffic": [
            {
                "type": "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION",
                "revision": "detcloud-vision-api-0",
                "percent": 100,
            }
        ],
        # The etag keeps the rollback from undoing a concurrent deployment.
        "etag": "e-api",
    }
    assert len(patches) == len(lines) == 6


def test_forward_moves_to_the_newest_revisions() -> None:
    api = services("one", "two", "three", live=0)
    moves = move_functions(NAMES, api, lambda line: None, forward=True)
    assert {move.deployment for move in moves} == {"three"}
    assert {move.after[-2:] for move in moves} == {"-2"}


def test_second_rollback_moves_to_an_earlier_deployment() -> None:
    moves = move_functions(NAMES, services("one", "two", "three", live=1), lambda line: None)
    assert {move.deployment for move in moves} == {"one"}


def test_rollback_needs_an_earlier_revision() -> None:
    api = services("one")
    with pytest.raises(RollbackFailed, match="no revision before detcloud-vision-api-0"):
        move_functions(NAMES, api, lambda line: None)
    assert api.urls_of("PATCH") == []


def test_refuses_a_rollback_to_an_incomplete_deployment() -> None:
    api = services("one", "two", without="tick")
    with pytest.raises(RollbackFailed, match="the deployment one has no version of tick"):
        move_functions(NAMES, api, lambda line: None)
    assert api.urls_of("PATCH") == []


def test_rollback_needs_a_deployed_service() -> None:
    with pytest.raises(RollbackFailed, match="no service detcloud-vision-api exists"):
        move_functions(NAMES, Answers({}), lambda line: None)


def test_interrupted_rollback_reports_moved_and_remaining_services() -> None:
    api = services("one", "two")
    api.table["PATCH", "services/detcloud-vision-suggest"] = GoogleError(409, "etag")
    with pytest.raises(RollbackFailed) as refusal:
        move_functions(NAMES, api, lambda line: None)
    assert str(refusal.value).splitlines() == [
        "functions of the deployment one: detcloud-vision-advance, detcloud-vision-tick, "
        "detcloud-vision-wake, detcloud-vision-checkpoint-gc; "
        "repeat the rollback to move the others",
        "detcloud-vision-suggest did not move: etag",
        "detcloud-vision-api was not told to move",
    ]
    # The API still runs the newer revision, which determines the deployment before.
    moved = [url for url in api.urls_of("PATCH") if "-api?" in url]
    assert moved == []


def test_failed_traffic_operation_stops_the_rollback() -> None:
    api = services("one", "two")
    error = {"code": 9, "message": "revision is not ready"}
    api.table["GET", "operations/tick"] = {"done": True, "error": error}
    with pytest.raises(RollbackFailed, match="vision-tick did not move: revision is not ready"):
        move_functions(NAMES, api, lambda line: None)
    assert [url for url in api.urls_of("PATCH") if "-api?" in url] == []


def test_api_moves_last_and_operations_have_a_time_limit() -> None:
    api, seconds, orders = services("one", "two"), [0.0], list[str]()
    looks = iter([{}, {}, {"done": True}])
    api.table["GET", "operations/suggest"] = lambda body: next(looks)
    # 2 s pass between two queries.
    clock = Clock(lambda: seconds[0], lambda value: seconds.__setitem__(0, seconds[0] + value))
    move_functions(NAMES, api, orders.append, clock=clock)
    assert seconds == [4.0]
    at = [url for _, url, _ in api.calls]
    assert at.index(f"{RUN}/projects/p/operations/suggest") < next(
        n for n, url in enumerate(at) if "vision-api?" in url
    )
    api = services("one", "two")
    api.table["GET", "operations/suggest"] = {}
    with pytest.raises(RollbackFailed, match="suggest did not move: the move did not end in 300 s"):
        move_functions(NAMES, api, lambda line: None, clock=clock)


def test_rollback_compares_the_actual_traffic() -> None:
    # The tick did not follow an earlier rollback. The next rollback moves the tick to the API's
    # deployment.
    api = services("one", "two", "three", live=1)
    service = dict(api.table["GET", "services/detcloud-vision-tick"])  # type: ignore[arg-type]
    service["trafficStatuses"] = [{"revision": "detcloud-vision-tick-2", "percent": 100}]
    api.table["GET", "services/detcloud-vision-tick"] = service
    moves = {
        move_function.function: move_function
        for move_function in move_functions(NAMES, api, lambda line: None)
    }
    assert {move.deployment for move in moves.values()} == {"two"}
    assert moves["tick"].before == "detcloud-vision-tick-2"
    assert [url for url in api.urls_of("PATCH") if "-tick?" not in url] == []


def test_prunes_revisions_before_the_last_five_deployments() -> None:
    # Five of seven deployments stay; two revisions of each of six functions are deleted.
    api, lines = services("1", "2", "3", "4", "5", "6", "7"), list[str]()
    assert prune_revisions(NAMES, api, lines.append) == 12
    ends = {url.rpartition("/")[2] for url in api.urls_of("DELETE")}
    assert ends == {
        f"{NAMES.part(function)}-{number}" for function in FUNCTIONS for number in (0, 1)
    }
    assert lines == ["12 old revisions of functions were removed"]


def test_keeps_the_live_revision_and_the_predecessor() -> None:
    # The second of eight is live and the first is kept for a rollback: only the third is deleted.
    api = services("1", "2", "3", "4", "5", "6", "7", "8", live=1)
    assert prune_revisions(NAMES, api, lambda line: None) == 6
    assert {url[-2:] for url in api.urls_of("DELETE")} == {"-2"}


def test_refused_revision_deletion_is_an_error() -> None:
    api = services("1", "2", "3", "4", "5", "6")
    api.table["DELETE", "detcloud-vision-tick-0"] = GoogleError(409, "in use")
    api.table["DELETE", "revisions/detcloud-vision-tick-0"] = GoogleError(409, "in use")
    with pytest.raises(PruneFailed, match="Google refused: in use"):
        prune_revisions(NAMES, api, lambda line: None)
