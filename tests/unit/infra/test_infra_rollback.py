"""Rollback to the deployment before, on Lambda as its developer guide describes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.aws.functions import describe_deployment
from infra.aws.names import FUNCTIONS, Names
from infra.aws.program import run
from infra.aws.pruning import DEPLOYMENTS_KEPT, prune_versions
from infra.aws.rollback import move_functions
from infra.aws.settings import parse_settings
from infra.stack_program import PruneFailed, RollbackFailed
from tests.emulators.materialise import EmulatorMaker, materialise
from tests.emulators.ministack import ACCOUNT, REGION, Ministack
from tests.unit.infra.graphs import POOLS, SPEECH, VISION, files

NAMES = Names("own", "123456789012", "us-east-1")
OLD, NEW = "detcloud 0.1 aaaa", "detcloud 0.2 bbbb"


class Lambda:
    """Functions by their names: descriptions by version, and the version of the alias `live`."""

    def __init__(self, *deployments: str, live: int | None = None) -> None:
        described = {number: deployment for number, deployment in enumerate(deployments, 1)}
        self.versions = {NAMES.part(name): dict(described) for name in FUNCTIONS}
        last: int | str = live or len(deployments)
        self.live = dict.fromkeys(self.versions, last)
        self.moved: list[str] = []
        self.fails_at = ""

    def __call__(self, service: str) -> Any:
        assert service == "lambda"
        return self

    def get_alias(self, FunctionName: str, Name: str) -> Any:
        if FunctionName not in self.live:
            raise ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "GetAlias")
        version = self.live[FunctionName]
        return {"FunctionVersion": str(version), "RevisionId": f"revision-{version}"}

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_versions_by_function"
        return self

    def paginate(self, FunctionName: str) -> Any:
        described = self.versions[FunctionName].items()
        numbered = [{"Version": str(number), "Description": text} for number, text in described]
        # Each page has some of them, the unpublished one first.
        yield {"Versions": [{"Version": "$LATEST", "Description": NEW}]}
        yield {"Versions": numbered}

    def update_alias(
        self, FunctionName: str, Name: str, FunctionVersion: str, RevisionId: str
    ) -> None:
        if FunctionName == self.fails_at:
            raise ClientError({"Error": {"Code": "TooManyRequestsException"}}, "UpdateAlias")
        assert (Name, RevisionId) == ("live", f"revision-{self.live[FunctionName]}")
        self.live[FunctionName] = int(FunctionVersion)
        self.moved.append(FunctionName)

    def delete_function(self, FunctionName: str, Qualifier: str) -> None:
        if FunctionName == self.fails_at:
            raise ClientError({"Error": {"Code": "TooManyRequestsException"}}, "DeleteFunction")
        # As Lambda does, of what an alias points to.
        assert int(Qualifier) != self.live[FunctionName]
        del self.versions[FunctionName][int(Qualifier)]

    def prune(self) -> int:
        return prune_versions(NAMES, self, lambda line: None)

    def move(self, *, forward: bool = False) -> Any:
        return move_functions(NAMES, self, lambda line: None, forward=forward)


def test_all_functions_go_back_to_the_deployment_before_and_the_api_last() -> None:
    # A deployment that changed nothing of a function's code still published a version of it.
    aws = Lambda(OLD, OLD, NEW)
    moves = aws.move()
    assert {(move.before, move.after, move.deployment) for move in moves} == {("3", "2", OLD)}
    assert {move.function for move in moves} == set(FUNCTIONS)
    assert set(aws.live.values()) == {2}
    assert aws.moved[-1] == NAMES.part("api")


def test_one_that_broke_off_goes_on_to_the_same_deployment() -> None:
    aws = Lambda("detcloud 0.0 0000", OLD, NEW)
    aws.fails_at = NAMES.part("suggest")
    with pytest.raises(RollbackFailed, match="try again"):
        aws.move()
    assert set(aws.live.values()) == {2, 3}
    aws.fails_at = ""
    aws.move()
    assert set(aws.live.values()) == {2}


def test_the_newest_deployment_is_found_again() -> None:
    aws = Lambda(OLD, NEW)
    aws.move()
    moves = aws.move(forward=True)
    assert {(move.before, move.after, move.deployment) for move in moves} == {("1", "2", NEW)}


def test_what_has_not_been_deployed_twice_has_no_way_back() -> None:
    aws = Lambda(NEW)
    with pytest.raises(RollbackFailed, match=r"there is no version before 1 of the API"):
        aws.move()
    assert not aws.moved


def test_nothing_moves_where_a_function_of_the_deployment_is_gone() -> None:
    aws = Lambda(OLD, NEW)
    del aws.versions[NAMES.part("tick")][1]
    with pytest.raises(RollbackFailed, match=r"^tick of the deployment .* cannot be found"):
        aws.move()
    assert not aws.moved


def test_a_cluster_of_before_aliases_says_what_to_do() -> None:
    aws = Lambda(OLD, NEW)
    aws.live.clear()
    with pytest.raises(RollbackFailed, match="has no alias live: deploy the cluster"):
        aws.move()


@pytest.mark.parametrize("forward", [True, False])
def test_alias_without_a_published_version_says_what_to_do(forward: bool) -> None:
    functions = Lambda()
    functions.live = dict.fromkeys(functions.live, "$LATEST")
    with pytest.raises(RollbackFailed, match=r"points to \$LATEST.*: deploy the cluster first"):
        functions.move(forward=forward)


def test_versions_that_no_rollback_needs_are_removed() -> None:
    # Eight deployments, of which the third published twice: versions 1 to 9.
    deployments = [f"detcloud 0.{name} aaaa" for name in (1, 2, 3, 3, 4, 5, 6, 7, 8)]
    aws = Lambda(*deployments)
    # The last five, which are 4 to 8, have the versions 5 to 9.
    assert aws.prune() == 4 * len(FUNCTIONS)
    assert {tuple(version) for version in aws.versions.values()} == {(5, 6, 7, 8, 9)}
    assert aws.prune() == 0
    aws.move()


def test_what_runs_and_its_way_back_are_kept_however_old() -> None:
    deployments = [f"detcloud 0.{number} aaaa" for number in range(1, 10)]
    aws = Lambda(*deployments, live=3)
    assert aws.prune() == 2 * len(FUNCTIONS)
    # 5 to 9 are the last five, 3 is called, and 2 is the one before.
    assert {tuple(version) for version in aws.versions.values()} == {(2, 3, 5, 6, 7, 8, 9)}
    assert {item.after for item in aws.move()} == {"2"}


def test_versions_of_a_deployment_under_way_are_left_alone() -> None:
    aws = Lambda(OLD, NEW)
    aws.versions[NAMES.part("tick")][3] = "detcloud 0.3 cccc"
    assert aws.prune() == 0


def test_what_could_not_be_removed_is_told_and_goes_the_next_time() -> None:
    aws = Lambda(*(f"detcloud 0.{number} aaaa" for number in range(1, 8)))
    aws.fails_at = NAMES.part(FUNCTIONS[-1])
    # Two versions of each function but the last.
    with pytest.raises(
        PruneFailed, match=f"^deleted {2 * len(FUNCTIONS) - 2} old function versions, .* refused"
    ):
        aws.prune()
    aws.fails_at = ""
    assert aws.prune() == 2


def test_another_archive_setting_or_pool_is_another_deployment(tmp_path: Path) -> None:
    def description(folder: str, config: Mapping[str, str], pools: str = POOLS) -> str:
        given = {**config, **files(tmp_path / folder)}
        settings = parse_settings(
            "vision", {name.removeprefix("detcloud:"): text for name, text in given.items()}
        )
        return describe_deployment(settings, pools)

    same = description("a", VISION)
    assert description("b", VISION) == same
    assert description("a", VISION, f"{POOLS}# more") != same
    assert description("a", {**VISION, "detcloud:logDays": "30"}) != same
    (tmp_path / "b" / "suggest.zip").write_bytes(b"other")
    settings = parse_settings(
        "vision",
        {
            **{name.removeprefix("detcloud:"): text for name, text in VISION.items()},
            "clusterConfig": "x",
            "archive": str(tmp_path / "b" / "functions.zip"),
            "suggestArchive": str(tmp_path / "b" / "suggest.zip"),
        },
    )
    assert describe_deployment(settings, POOLS) != same


def test_a_stack_on_an_emulator_goes_back_and_forward(aws: Ministack, tmp_path: Path) -> None:
    config = {**SPEECH, **files(tmp_path / "stack")}
    materialise(run, "speech", config, EmulatorMaker(aws, streams=False))
    names, api = Names("speech", ACCOUNT, REGION), aws.client("lambda")
    for name in FUNCTIONS:
        function = names.part(name)
        api.update_function_configuration(FunctionName=function, Description=NEW)
        version = api.publish_version(FunctionName=function)["Version"]
        api.update_alias(FunctionName=function, Name="live", FunctionVersion=version)
    for forward, expected in ((False, "1"), (True, "2")):
        moves = move_functions(names, aws.client, lambda line: None, forward=forward)
        assert {move.after for move in moves} == {expected}
        for name in FUNCTIONS:
            alias = api.get_alias(FunctionName=names.part(name), Name="live")
            assert alias["FunctionVersion"] == expected
    # The first is kept as the one before, until there are enough others.
    for number in range(DEPLOYMENTS_KEPT):
        for name in FUNCTIONS:
            function = names.part(name)
            api.update_function_configuration(FunctionName=function, Description=f"later {number}")
            version = api.publish_version(FunctionName=function)["Version"]
            api.update_alias(FunctionName=function, Name="live", FunctionVersion=version)
    assert prune_versions(names, aws.client, lambda line: None) == 2 * len(FUNCTIONS)
    pages = api.get_paginator("list_versions_by_function").paginate(FunctionName=names.part("api"))
    kept = [item["Version"] for page in pages for item in page["Versions"]]
    assert kept == ["$LATEST", "3", "4", "5", "6", "7"]
