"""The deployed functions on AWS: short entry points with few and fast imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infra.aws.names import FUNCTIONS
from tests.conftest import require
from tests.patience import PROCESS_SECONDS_MAX

require("aws_lambda_powertools")

LAMBDAS = Path(__file__).parents[3] / "lambdas"
# AWS allows 10 s for the initialization. The second half is a margin for slow machines.
IMPORT_SECONDS_MAX = 5.0
# Modules that are slow to import or needless at the start. Botocore replaces boto3.
NEVER = {"aws_xray_sdk", "boto3", "s3transfer", "torch", "optuna", "pulumi"}
# Modules that only the API needs.
OF_THE_API = {
    "anyio",
    "fastapi",
    "mangum",
    "starlette",
    "yaml",
    "asyncio",
    "control_plane.config",
    "control_plane.api.app",
}


def context_expression(left_ms: int = 59_000) -> str:
    """Return a Python expression for Lambda's context object."""
    return f"""SimpleNamespace(
    get_remaining_time_in_millis=lambda: {left_ms},
    function_name="detcloud-vision",
    memory_limit_in_mb=512,
    invoked_function_arn="arn:aws:lambda:eu-central-1:123456789012:function:detcloud-vision",
    aws_request_id="1",
)"""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_entry_points_have_at_most_40_lines(name: str) -> None:
    assert len((LAMBDAS / "aws" / f"{name}.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_import_no_needless_modules(name: str) -> None:
    needless = NEVER if name == "api" else NEVER | OF_THE_API
    assert not needless & imported_modules(f"lambdas.aws.{name}")


def test_tracing_is_imported_only_if_enabled() -> None:
    wanted = {"POWERTOOLS_TRACE_DISABLED": "false"}
    assert "aws_xray_sdk" in imported_modules("lambdas.aws.advance", wanted)


def test_api_starts_without_routes_schemas_and_actors() -> None:
    check = """
import sys
import lambdas.aws.api
late = ("control_plane.api.routes.", "control_plane.actors.experiment", "control_plane.searchers")
made = [name for name in sys.modules if name.startswith(late)]
from control_plane.api.routes import all_routes
from control_plane.queries.answer import Answer
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.pools import ClusterConfig, ResourcePool
made += [str(it) for it in all_routes() if hasattr(it, "dependant")]
# `Page` is completed for each type of items, and a part of an answer with the answer.
kinds = {*Answer.__subclasses__(), ExperimentConfig, ClusterConfig, ResourcePool}
made += [it.__name__ for it in kinds if it.__pydantic_complete__]
assert set(made) <= {"Page", "TrialCounts", "NoticeCounts"}, made
"""
    run_script(check, {})


@pytest.mark.parametrize(
    ("left_ms", "answers", "call_count"), [(300_000, [True, True, False], 3), (59_000, [True], 0)]
)
def test_suggests_while_searches_wait_and_time_is_left(
    left_ms: int, answers: list[bool], call_count: int
) -> None:
    check = f"""
from types import SimpleNamespace
import lambdas.aws.suggest
answers = iter({answers})
calls = []
suggester = SimpleNamespace(suggest_all=lambda: calls.append(1) or next(answers))
lambdas.aws.suggest.cluster = SimpleNamespace(suggester=suggester)
context = {context_expression(left_ms)}
lambdas.aws.suggest.handler({{}}, context)
assert len(calls) == {call_count}
"""
    run_script(check, {})


@pytest.mark.parametrize(
    ("done", "age_seconds", "failed"),
    [
        (True, 0, []),
        (False, 50, ["7", "8"]),
        # The tick of each minute has seen the first row, and continues its work.
        (False, 61, ["8"]),
    ],
)
def test_unfinished_rows_are_delivered_again_for_a_minute(
    done: bool, age_seconds: int, failed: list[str]
) -> None:
    check = f"""
from types import SimpleNamespace
import time
import lambdas.aws.wake
woken = []
lambdas.aws.wake.steps.run_row_steps = (
    lambda partitions, left_ms: woken.append((partitions, left_ms())) or {done}
)
context = {context_expression()}
records = [
    dict(dynamodb=dict(SequenceNumber=number, Keys=dict(p=dict(S=partition), s=dict(S="1")), **at))
    for number, partition, at in (
        ("7", "notices", dict(ApproximateCreationDateTime=time.time() - {age_seconds})),
        ("8", "jobs#gpus", dict()),
    )
]
answer = lambdas.aws.wake.handler(dict(Records=records), context)
assert woken == [(["notices", "jobs#gpus"], 59_000)]
assert [it["itemIdentifier"] for it in answer["batchItemFailures"]] == {failed}
"""
    run_script(check, {})


@pytest.mark.parametrize("event", ["{}", "dict(Records=[dict(dynamodb={})])"])
def test_tick_runs_all_steps_for_any_event(event: str) -> None:
    check = f"""
from types import SimpleNamespace
import lambdas.aws.tick
from lambdas.tick_steps import Step
done = []
lambdas.aws.tick.steps.minute_steps = lambda count: [Step("leases", lambda: done.append(1))]
assert lambdas.aws.tick.handler({event}, {context_expression()}) is None
assert done == [1]
"""
    run_script(check, {})


@pytest.mark.parametrize(
    ("cluster", "namespace"),
    [("detcloud-vision", "detcloud/vision"), ("detcloud-a-b", "detcloud/a-b"), (None, "detcloud")],
)
def test_metrics_have_the_teams_namespace(cluster: str | None, namespace: str) -> None:
    check = f"""
import os
if {cluster!r} is None:
    del os.environ["DETCLOUD_CLUSTER"]
from lambdas.aws.telemetry import Telemetry
from types import SimpleNamespace
telemetry = Telemetry("advance")
context = {context_expression()}
telemetry.wrap_handler(lambda event, context: telemetry.count(RecordsFailed=2))({{}}, context)
"""
    line = json.loads(run_script(check, {"DETCLOUD_CLUSTER": cluster or ""}).splitlines()[-1])
    [metric] = line["_aws"]["CloudWatchMetrics"]
    assert metric["Namespace"] == namespace
    assert (metric["Dimensions"], line["service"]) == ([["service"]], "advance")


@pytest.mark.parametrize(
    ("instance", "announced"), [("i-ours", ["i-ours"]), ("i-theirs", []), ("i-past", [])]
)
def test_only_warnings_about_live_instances_are_stored(instance: str, announced: list[str]) -> None:
    check = f"""
from types import SimpleNamespace
import lambdas.aws.spot_notice
from control_plane.fleet.notices import read_notices
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Key, Put
table = MemoryTable()
rows = ("fleets", "cpus"), ("fleets", "gpus"), ("instances#gpus", "i-ours")
for row in (*rows, ("past-instances#gpus", "1.i-past"), ("intents#gpus", "1")):
    table.commit((Put(Key(*row), 1, b"{{}}", Expect.ABSENT),))
lambdas.aws.spot_notice.cluster = SimpleNamespace(engine=SimpleNamespace(table=table))
event = {{
    "detail-type": "EC2 Spot Instance Interruption Warning",
    "time": "2026-01-01T00:00:00Z",
    "detail": {{"instance-id": "{instance}", "instance-action": "terminate"}},
}}
context = {context_expression()}
lambdas.aws.spot_notice.handler(event, context)
assert [it.instance for it in read_notices(table)] == {announced}
"""
    # The logs do not name a foreign instance.
    assert "i-theirs" not in run_script(check, {})


@pytest.mark.parametrize("end", ["2026-01-01T11:30:00Z", "Thu Jan 01 11:30:00 UTC 2026"])
def test_end_of_a_capacity_block_is_stored_as_a_notice(end: str) -> None:
    check = f"""
import lambdas.aws.spot_notice as spot_notice
from types import SimpleNamespace
from control_plane.fleet.notices import InstanceNotice, read_notices
from control_plane.state.memory import MemoryTable
table = MemoryTable()
spot_notice.cluster = SimpleNamespace(engine=SimpleNamespace(table=table))
event = {{
    "detail-type": "Capacity Block Reservation Expiration Warning",
    "time": "2026-01-01T10:50:00Z",
    "detail": {{"capacity-reservation-id": "cr-1", "end-date": "{end}"}},
}}
spot_notice.handler(event, {context_expression()})
# 30 minutes before 11:30 are 11:00, as are ten minutes after the warning, which count if the end
# cannot be parsed. 11:00 is 1,767,225,600 + 11 x 3600 = 1,767,265,200 s after the epoch.
assert list(read_notices(table)) == [InstanceNotice("cr-1", 1_767_265_200_000)]
"""
    run_script(check, {})


def imported_modules(module: str, environment: dict[str, str] | None = None) -> set[str]:
    """Import a module in a new process and return all imported modules. Fail for a slow import."""
    check = f"""
import json, sys, time
began = time.process_time()
import {module}
assert time.process_time() - began < {IMPORT_SECONDS_MAX}, "it takes too long"
print(json.dumps(list(sys.modules)))
"""
    return set(json.loads(run_script(check, environment or {}).splitlines()[-1]))


def run_script(script: str, environment: dict[str, str]) -> str:
    """Run a script in the environment of a function and return its output."""
    repository = LAMBDAS.parent
    variables = {
        "PYTHONPATH": f"{repository}:{repository / 'harness'}",
        "POWERTOOLS_TRACE_DISABLED": "true",
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_LAMBDA_FUNCTION_NAME": "detcloud-vision",
        "DETCLOUD_TABLE": "detcloud-vision",
        "DETCLOUD_OBJECTS": "detcloud-vision-objects",
        "DETCLOUD_CHECKPOINTS": "detcloud-vision-checkpoints",
        "DETCLOUD_CLUSTER": "detcloud-vision",
        "DETCLOUD_API_URL": "https://api.example.com",
        "DETCLOUD_ADMIN_SHA256": "0" * 64,
        "DETCLOUD_INSTANCE_ROLE": "arn:aws:iam::123456789012:role/instance",
        "DETCLOUD_STORAGE_ROLE": "arn:aws:iam::123456789012:role/storage",
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env=variables | environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    return done.stdout
