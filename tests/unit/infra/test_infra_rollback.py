"""Rollback to an earlier deployment, on a stub of Lambda after the developer guide."""

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
    """A stub of Lambda: each function has versions with descriptions and an alias `live`."""

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
        # Versions come in pages, the unpublished version first.
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
        # Lambda refuses to delete a version with an alias.
        assert int(Qualifier) != self.live[FunctionName]
        del self.versions[FunctionName][int(Qualifier)]

    def prune(self) -> int:
        return prune_versions(NAMES, self, lambda line: None)

    def move(self, *, forward: bool = False) -> Any:
        return move_functions(NAMES, self, lambda line: None, forward=forward)


def test_rollback_moves_all_functions_and_the_api_last() -> None:
    # A deployment publishes a version of each function, even with unchanged code.
    aws = Lambda(OLD, OLD, NEW)
    moves = aws.move()
    assert {(move.before, move.after, move.deployment) for move in moves} == {("3", "2", OLD)}
    assert {move.function for move in moves} == set(FUNCTIONS)
    assert set(aws.live.values()) == {2}
    assert aws.moved[-1] == NAMES.part("api")


def test_interrupted_rollback_continues_to_the_same_deployment() -> None:
    aws = Lambda("detcloud 0.0 0000", OLD, NEW)
    aws.fails_at = NAMES.part("suggest")
    with pytest.raises(RollbackFailed, match="try again"):
        aws.move()
    assert set(aws.live.values()) == {2, 3}
    aws.fails_at = ""
    aws.move()
    assert set(aws.live.values()) == {2}


def test_forward_moves_to_the_newest_deployment() -> None:
    aws = Lambda(OLD, NEW)
    aws.move()
    moves = aws.move(forward=True)
    assert {(move.before, move.after, move.deployment) for move in moves} == {("1", "2", NEW)}


def test_rollback_needs_an_earlier_version() -> None:
    aws = Lambda(NEW)
    with pytest.raises(RollbackFailed, match=r"the API has no version before 1"):
        aws.move()
    assert not aws.moved


def test_missing_function_version_stops_the_rollback() -> None:
    aws = Lambda(OLD, NEW)
    del aws.versions[NAMES.part("tick")][1]
    with pytest.raises(RollbackFailed, match="has no version of tick, so nothing was rolled"):
        aws.move()
    assert not aws.moved


def test_cluster_without_aliases_must_be_deployed_first() -> None:
    aws = Lambda(OLD, NEW)
    aws.live.clear()
    with pytest.raises(RollbackFailed, match="has no alias live: deploy the cluster"):
        aws.move()


@pytest.mark.parametrize("forward", [True, False])
def test_alias_without_a_published_version_must_be_deployed_first(forward: bool) -> None:
    functions = Lambda()
    functions.live = dict.fromkeys(functions.live, "$LATEST")
    with pytest.raises(RollbackFailed, match=r"points to \$LATEST.*: deploy the cluster first"):
        functions.move(forward=forward)


def test_prunes_versions_before_the_last_five_deployments() -> None:
    # Eight deployments, of which the third published twice: versions 1 to 9.
    deployments = [f"detcloud 0.{name} aaaa" for name in (1, 2, 3, 3, 4, 5, 6, 7, 8)]
    aws = Lambda(*deployments)
    # The last five deployments, 4 to 8, have the versions 5 to 9.
    assert aws.prune() == 4 * len(FUNCTIONS)
    assert {tuple(version) for version in aws.versions.values()} == {(5, 6, 7, 8, 9)}
    assert aws.prune() == 0
    aws.move()


def test_keeps_the_live_version_and_the_predecessor() -> None:
    deployments = [f"detcloud 0.{number} aaaa" for number in range(1, 10)]
    aws = Lambda(*deployments, live=3)
    assert aws.prune() == 2 * len(FUNCTIONS)
    # The last five are 5 to 9, version 3 is live, and 2 is its predecessor.
    assert {tuple(version) for version in aws.versions.values()} == {(2, 3, 5, 6, 7, 8, 9)}
    assert {item.after for item in aws.move()} == {"2"}


def test_versions_of_a_deployment_under_way_are_left_alone() -> None:
    aws = Lambda(OLD, NEW)
    aws.versions[NAMES.part("tick")][3] = "detcloud 0.3 cccc"
    assert aws.prune() == 0


def test_failed_version_deletion_is_repeated_next_time() -> None:
    aws = Lambda(*(f"detcloud 0.{number} aaaa" for number in range(1, 8)))
    aws.fails_at = NAMES.part(FUNCTIONS[-1])
    # Two versions of each function but the last.
    with pytest.raises(
        PruneFailed, match=f"^deleted {2 * len(FUNCTIONS) - 2} old function versions, .* refused"
    ):
        aws.prune()
    aws.fails_at = ""
    assert aws.prune() == 2


def test_deployment_description_follows_the_content(tmp_path: Path) -> None:
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


def test_emulated_stack_rolls_back_and_forward(aws: Ministack, tmp_path: Path) -> None:
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
    # The first version is kept until five later versions exist.
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
