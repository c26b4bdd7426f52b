"""The relay's tasks on Fargate: the request, and a sentence with a remedy for each refusal."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from control_plane.access.relay_record import RelayRecord, decode_relay
from control_plane.aws.relay_tasks import FargateTasks, RelayPlace
from control_plane.usecases.relay_demand import RelayNotStarted

RECORD = RelayRecord("attempt-1", "c2VjcmV0", 1)
PLACE = RelayPlace("detcloud-vision", "detcloud-vision-relay", ("subnet-1",), "sg-1")


class FakeEcs:
    """A client of ECS with prepared answers."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.requests: list[dict[str, Any]] = []

    def _answer(self, name: str, request: dict[str, Any]) -> Any:
        self.requests.append(request)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run_task(self, **request: Any) -> Any:
        return self._answer("run_task", request)

    def describe_tasks(self, **request: Any) -> Any:
        return self._answer("describe_tasks", request)

    def stop_task(self, **request: Any) -> Any:
        return self._answer("stop_task", request)


def tasks(client: FakeEcs) -> FargateTasks:
    return FargateTasks(client, PLACE, lambda record, revision: {"R": record, "N": str(revision)})


def refusal(code: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "RunTask")


def start_error(**answers: Any) -> RelayNotStarted:
    with pytest.raises(RelayNotStarted) as error:
        tasks(FakeEcs(**answers)).start(RECORD, 5)
    return error.value


def test_request_is_idempotent_and_has_the_record_and_a_public_address() -> None:
    client = FakeEcs(run_task={"tasks": [{"taskArn": "arn:task/1"}], "failures": []})
    assert tasks(client).start(RECORD, 5) == "arn:task/1"
    [request] = client.requests
    assert (request["clientToken"], request["count"]) == ("attempt-1", 1)
    assert request["networkConfiguration"]["awsvpcConfiguration"] == {
        "subnets": ["subnet-1"],
        "securityGroups": ["sg-1"],
        "assignPublicIp": "ENABLED",
    }
    [override] = request["overrides"]["containerOverrides"]
    variables = {item["name"]: item["value"] for item in override["environment"]}
    assert decode_relay(variables["R"].encode()) == RECORD
    assert variables["N"] == "5"


@pytest.mark.parametrize(
    ("answer", "text", "is_passing"),
    [
        (
            refusal("AccessDeniedException", "not authorized to perform: ecs:RunTask"),
            "whether a policy denies ecs:RunTask",
            False,
        ),
        (
            refusal("ClientException", "Capacity is unavailable at this time."),
            "no room for the relay now",
            True,
        ),
        (
            refusal("ClientException", "You've reached the limit on the number of vCPUs"),
            "Fargate On-Demand vCPU resource count",
            True,
        ),
        (
            refusal("ClusterNotFoundException", "Cluster not found."),
            "deploy the stack again",
            False,
        ),
        (
            {"tasks": [], "failures": [{"reason": "RESOURCE:ENI"}]},
            "no room for the relay now: RESOURCE:ENI",
            True,
        ),
        ({"tasks": [], "failures": []}, "AWS gave no reason", True),
        (EndpointConnectionError(endpoint_url="https://ecs"), "did not answer", True),
    ],
    ids=["permission", "capacity", "quota", "missing", "failure", "no-reason", "no-answer"],
)
def test_each_refusal_becomes_a_sentence_with_a_remedy(
    answer: Any, text: str, is_passing: bool
) -> None:
    error = start_error(run_task=answer)
    assert text in str(error)
    assert error.is_passing is is_passing
    assert "c2VjcmV0" not in str(error)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (
            {"stoppedReason": "CannotPullContainerError: i/o timeout"},
            "need a route to the internet",
        ),
        (
            {
                "stoppedReason": "Essential container in task exited",
                "containers": [{"exitCode": 1}],
            },
            "exit status 1",
        ),
    ],
)
def test_stopped_task_has_a_reason(task: dict[str, Any], text: str) -> None:
    client = FakeEcs(describe_tasks={"tasks": [{"lastStatus": "STOPPED", **task}]})
    failure = tasks(client).find_failure("arn:task/1")
    assert failure is not None
    assert text in str(failure)


def test_running_unknown_and_hidden_tasks() -> None:
    running = FakeEcs(describe_tasks={"tasks": [{"lastStatus": "PENDING"}]})
    assert tasks(running).find_failure("arn:task/1") is None
    lost = tasks(FakeEcs(describe_tasks={"tasks": [], "failures": [{"reason": "MISSING"}]}))
    assert lost.find_failure("arn:task/1") is not None
    denied = FakeEcs(describe_tasks=refusal("AccessDeniedException", "no"))
    assert tasks(denied).find_failure("arn:task/1") is None


def test_refused_stop_is_no_error() -> None:
    tasks(FakeEcs(stop_task=refusal("AccessDeniedException", "no"))).stop("arn:task/1")
