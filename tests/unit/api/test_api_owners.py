"""All changing routes, called by the owner, by a different user and by an admin.

The routes come from the OpenAPI document: a new route without a row here fails.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pytest

from control_plane.access.ownership import Action, OwnedObject, find_refusal
from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_digest, token_put
from control_plane.actors import addresses
from control_plane.actors.messages.agent import TunnelOpened
from control_plane.api.owned_objects import only_own
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.state.table import Expect, Key, Put
from control_plane.usecases.tunnels import TunnelRecord
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.table_decorators import recorded_table
from tests.unit.api.test_api_access import access_rules

OWNER, ADMIN, OTHER = TOKENS[Role.USER], TOKENS[Role.ADMIN], "dct_another-users-token"
UUID = "00000011-0000-4000-8000-000000000000"
UPLOAD = "00000077-0000-4000-8000-000000000000"
SHA256, MD5 = "0" * 64, "0" * 32
TUNNEL = "tunnel-of-user-1"
CERTIFICATE = base64.b64encode(b"certificate").decode()
CUSTOM = (
    CONFIG.replace("random", "custom")
    .replace(", max_trials: 2", "")
    .replace("max_length: {batches: 10}", "unit: batches")
)
SCHEDULED = {"config": f"{CONFIG}\nschedule: {{cron: '0 3 * * *'}}\n", "model_code": SHA256}
PUT_FILE = f"path=x&sha256={SHA256}"
PUT_PART = f"path=x&size=1&number=1&md5={MD5}"

Route = tuple[str, str]
"""A method and a path of the OpenAPI document, relative to the API's path."""


@dataclass(frozen=True)
class Call:
    """A request that changes an object of `user-1`."""

    target: str
    content: object = None
    names_others: bool = False
    """Whether the request also names an object of `user-2`, which `user-1` may not change."""


EXPERIMENT = "/experiments/{experiment_id}"
UPLOADED = "/checkpoint-uploads/{trial_id}/{uuid}"
UPLOADING = f"/checkpoint-uploads/1/{UPLOAD}"

WEBHOOK = {
    "name": "hook",
    "url": "https://example.com/",
    "triggers": [{"type": "EXPERIMENT_STATE_CHANGE"}],
}
DELIVERY = f"{'0' * 14}.{'0' * 8}-0000-0000-0000-{'0' * 12}"

REFUSED_TO_OTHERS: dict[Route, tuple[Call, ...]] = {
    **{
        ("POST", f"{EXPERIMENT}/{name}"): (Call(f"/experiments/1/{name}"),)
        for name in ("pause", "activate", "cancel", "kill", "archive", "unarchive")
    },
    ("POST", f"{EXPERIMENT}/continue"): (
        Call("/experiments/2/continue", {}),
        Call("/experiments/2/continue", {"validate_only": True}),
    ),
    ("PATCH", EXPERIMENT): (
        Call("/experiments/1", {"name": "x"}),
        # pydantic parses 1.0 as the number 1, too.
        Call("/experiments/1.0", {"labels": ["x"]}),
        Call("/experiments/2", {"workspace": "w", "project": "p"}),
        Call("/experiments/2", {"metadata": {}, "description": "x"}),
    ),
    ("DELETE", f"{EXPERIMENT}/tensorboard"): (Call("/experiments/2/tensorboard"),),
    ("POST", f"{EXPERIMENT}/searcher-operations"): (
        Call(
            "/experiments/3/searcher-operations",
            {"post": 1, "acknowledged": 0, "operations": [{"type": "shutdown"}]},
        ),
    ),
    ("PATCH", "/trials/{trial_id}"): (Call("/trials/1", {"metadata": {}}),),
    ("POST", "/trials/{trial_id}/kill"): (Call("/trials/1/kill"),),
    ("PATCH", "/checkpoints/{uuid}"): (Call(f"/checkpoints/{UUID[:8]}", {"metadata": {}}),),
    ("DELETE", "/checkpoints/{uuid}/damage"): (Call(f"/checkpoints/{UUID}/damage"),),
    ("POST", "/checkpoint-uploads"): (
        Call("/checkpoint-uploads", {"trial_id": 1, "uuid": UPLOAD}),
    ),
    ("POST", f"{UPLOADED}/files"): (
        Call(
            f"{UPLOADING}/files",
            {"files": [{"path": "x", "size": 1, "sha256": SHA256, "md5": MD5}]},
        ),
    ),
    ("POST", f"{UPLOADED}/parts"): (Call(f"{UPLOADING}/parts", {"path": "x", "size": 1}),),
    ("PUT", f"{UPLOADED}/parts/content"): (Call(f"{UPLOADING}/parts/content?{PUT_PART}"),),
    ("POST", f"{UPLOADED}/parts/join"): (
        Call(f"{UPLOADING}/parts/join", {"path": "x", "size": 1}),
    ),
    ("PUT", f"{UPLOADED}/content"): (Call(f"{UPLOADING}/content?{PUT_FILE}"),),
    ("POST", f"{UPLOADED}/complete"): (Call(f"{UPLOADING}/complete", {"manifest_sha256": SHA256}),),
    ("PATCH", "/models/{name}"): (Call("/models/digits", {"notes": "n", "labels": ["x"]}),),
    ("POST", "/models/{name}/versions"): (
        Call("/models/digits/versions", {"checkpoint_uuid": UUID}),
    ),
    ("PATCH", "/models/{name}/versions/{number}"): (
        Call("/models/digits/versions/1", {"comment": "c"}),
    ),
    ("PATCH", "/jobs/{job_id}"): (
        Call("/jobs/1", {"weight": 0.5}),
        Call("/jobs/1", {"resource_pool": "default"}),
        Call("/jobs/1", {"behind_of": "4"}, names_others=True),
        # Experiment 4 belongs to `user-2`, who moves the job next to a job of `user-1`.
        Call("/jobs/4", {"ahead_of": "1"}, names_others=True),
        Call("/jobs/4", {"behind_of": "1"}, names_others=True),
    ),
    ("PATCH", "/jobs"): (
        Call(
            "/jobs",
            {"operations": [{"job_id": "4", "weight": 0.5}, {"job_id": "1", "weight": 0.5}]},
            names_others=True,
        ),
        Call("/jobs", {"operations": [{"job_id": "4", "ahead_of": "1"}]}, names_others=True),
    ),
    ("PUT", "/templates/{name}"): (Call("/templates/base", {"config": "max_restarts: 3"}),),
    **{
        ("POST", f"/schedules/{{schedule_id}}/{name}"): (Call(f"/schedules/1/{name}"),)
        for name in ("pause", "activate", "run")
    },
    ("PATCH", "/experiments/{experiment_id}/retention"): (
        Call("/experiments/1/retention", {"log_retention_days": 7}),
    ),
    ("PUT", "/reports/{report_id}"): (
        Call("/reports/1", {"title": "t", "text": "", "sharing": "read", "revision": 1}),
    ),
    ("POST", "/tunnels"): (
        Call("/tunnels", {"trial_id": 1, "ports": [80], "certificate": CERTIFICATE}),
    ),
    ("POST", "/tunnels/{tunnel_id}/tickets"): (Call(f"/tunnels/{TUNNEL}/tickets"),),
    ("PATCH", "/webhooks/{webhook_id}"): (Call("/webhooks/1", {"labels": ["a"]}),),
    ("POST", "/webhooks/{webhook_id}/test"): (Call("/webhooks/1/test"),),
    ("POST", "/webhooks/{webhook_id}/deliveries/{delivery_id}/retry"): (
        Call(f"/webhooks/1/deliveries/{DELIVERY}/retry"),
    ),
    # Deletions come last, because the owner's deletions remove the objects of further rows.
    ("DELETE", "/experiment-views/{name}"): (Call("/experiment-views/fast?user=user-1"),),
    ("DELETE", "/reports/{report_id}"): (Call("/reports/1"),),
    ("DELETE", "/webhooks/{webhook_id}"): (Call("/webhooks/1"),),
    ("DELETE", "/tunnels/{tunnel_id}"): (Call(f"/tunnels/{TUNNEL}"),),
    ("DELETE", "/schedules/{schedule_id}"): (Call("/schedules/1"),),
    ("DELETE", "/templates/{name}"): (Call("/templates/base"),),
    ("DELETE", "/models/{name}/versions/{number}"): (Call("/models/digits/versions/1"),),
    ("DELETE", "/models/{name}"): (Call("/models/digits"),),
    ("DELETE", "/checkpoints/{uuid}"): (
        Call(f"/checkpoints/{UUID}"),
        Call(f"/checkpoints/{UUID}?glob=*"),
    ),
    ("DELETE", "/tokens/{token_id}"): (Call("/tokens/1"),),
    ("DELETE", EXPERIMENT): (Call("/experiments/2"),),
}

ALLOWED_TO_OTHERS: dict[Route, tuple[Call, str]] = {
    ("POST", "/experiments"): (
        Call("/experiments", {"config": CONFIG, "validate_only": True}),
        "a new experiment is the caller's",
    ),
    ("POST", "/search-previews"): (Call("/search-previews", {"config": CONFIG}), "stores nothing"),
    ("POST", "/model-code"): (
        Call("/model-code", {"sha256": SHA256, "size": 1}),
        "an archive is stored by its digest and replaces nothing",
    ),
    ("PUT", "/model-code/{sha256}"): (
        Call(f"/model-code/{SHA256}"),
        "an archive is stored by its digest and replaces nothing",
    ),
    ("POST", "/checkpoints/{uuid}/pin"): (
        Call(f"/checkpoints/{UUID}/pin"),
        "a pin is of the user who sets it",
    ),
    ("DELETE", "/checkpoints/{uuid}/pin"): (
        Call(f"/checkpoints/{UUID}/pin"),
        "a user removes no pin but the own one",
    ),
    ("PUT", "/experiment-views/{name}"): (
        Call("/experiment-views/fast", {}),
        "users only save their own views",
    ),
    ("POST", "/reports"): (Call("/reports", {"title": "mine"}), "a new report is the caller's"),
    ("POST", "/schedules"): (Call("/schedules", SCHEDULED), "a new schedule is the caller's"),
    ("POST", "/models"): (Call("/models", {"name": "mine"}), "a new model is the caller's"),
    ("POST", "/webhooks"): (
        Call("/webhooks", {**WEBHOOK, "name": "mine"}),
        "a new webhook announces the caller's experiments",
    ),
    ("POST", "/tokens"): (Call("/tokens", {}), "a new token is the caller's"),
    ("POST", "/sign-in-codes"): (Call("/sign-in-codes"), "a code opens a session of the caller"),
    ("DELETE", "/sessions/current"): (Call("/sessions/current"), "a session is the caller's"),
}

ADMINS_ONLY: dict[Route, Call] = {
    ("DELETE", "/agents/{agent_id}"): Call("/agents/node"),
    ("POST", "/experiments/{experiment_id}/retention/cleanup"): Call(
        "/experiments/2/retention/cleanup"
    ),
    **{
        ("POST", f"/agents/{{agent_id}}/{name}"): Call(f"/agents/node/{name}")
        for name in ("enable", "disable", "upgrade")
    },
    **{
        ("POST", f"/agents/{{agent_id}}/slots/{{slot_id}}/{name}"): Call(
            f"/agents/node/slots/0/{name}"
        )
        for name in ("enable", "disable")
    },
    ("PUT", "/cluster/configuration"): Call(
        "/cluster/configuration", {"config": "{}", "dry_run": True}
    ),
    ("PUT", "/agent-users"): Call(
        "/agent-users", {"kind": "user", "name": "user-1", "uid": 1001, "gid": 1001}
    ),
    ("DELETE", "/agent-users"): Call("/agent-users?kind=user&name=user-1"),
    ("PUT", "/resource-pools/{resource_pool}"): Call("/resource-pools/default", {}),
    **{
        ("POST", f"/resource-pools/{{resource_pool}}/{name}"): Call(
            f"/resource-pools/default/{name}"
        )
        for name in ("drain", "undrain")
    },
    ("DELETE", "/resource-pools/{resource_pool}"): Call("/resource-pools/default"),
}


def ask(cluster: Cluster, route: Route, request: Call, token: str) -> Answer:
    return call(cluster.app, route[0], V1 + request.target, token=token, content=request.content)


def make_world(cluster: Cluster) -> Cluster:
    """Create an object of `user-1` for each route and an experiment of `user-2`."""
    principal = Principal("user-2", Role.USER)
    cluster.services.table.commit([token_put(token_digest(OTHER), principal)])
    for config in (CONFIG, CONFIG, CUSTOM):
        answer = cluster.create(config)
        assert answer.status == 201, answer.body
    body = {"config": CONFIG, "model_code": cluster.store_code()}
    assert ask(cluster, ("POST", ""), Call("/experiments", body), OTHER).status == 201
    agent = Agent(cluster)
    agent.take_work()
    line = {"kind": "checkpoint", "uuid": UUID, "steps_completed": 1, "path": f"1/1/1/{UUID}"}
    agent.report(
        "1.1",
        {**line, "manifest_sha256": SHA256, "size_bytes": 8, "files": 1, "metadata": {}},
    )
    for path, content in (
        ("/experiments/2/kill", {}),
        ("/models", {"name": "digits"}),
        ("/models/digits/versions", {"checkpoint_uuid": UUID}),
        ("/tokens", {}),
        ("/reports", {"title": "shared", "sharing": "read"}),
        ("/webhooks", WEBHOOK),
        ("/schedules", {**SCHEDULED, "model_code": cluster.store_code()}),
    ):
        assert cluster.post(path, content).status < 300, path
    put = ("PUT", "/templates/{name}")
    assert ask(cluster, put, Call("/templates/base", {"config": "{}"}), OWNER).status == 200
    assert ask(cluster, put, Call("/experiment-views/fast", {}), OWNER).status == 200
    record = TunnelRecord(
        TUNNEL, "user-1", token_digest(OWNER), 1, 1, agent.name, (80,), CERTIFICATE, NOW_MS
    )
    row = json.dumps(asdict(record)).encode()
    cluster.services.table.commit((Put(Key("tunnels", TUNNEL), 1, row, Expect.ABSENT),))
    cluster.services.engine.execute_command(
        addresses.agent(agent.name), TunnelOpened(TUNNEL, 1, 1), by="user-1"
    )
    return cluster


@pytest.fixture
def world(cluster: Cluster) -> Cluster:
    return make_world(cluster)


def refused_calls() -> Iterator[tuple[Route, Call]]:
    for route, calls in REFUSED_TO_OTHERS.items():
        for request in calls:
            yield route, request


def test_changing_routes_have_a_row(cluster: Cluster) -> None:
    described = {
        (method.upper(), path.removeprefix(V1))
        for path, methods in cluster.get("/openapi.json").json["paths"].items()
        for method in methods.keys() - {"get", "head", "options"}
    }
    of_users = {
        (method, path.removeprefix(V1))
        for (method, path), rule in access_rules().items()
        if rule.roles & {Role.USER, Role.ADMIN}
    }
    rows = [*REFUSED_TO_OTHERS, *ALLOWED_TO_OTHERS, *ADMINS_ONLY]
    missing = described & of_users - set(rows)
    tables = "REFUSED_TO_OTHERS, ALLOWED_TO_OTHERS or ADMINS_ONLY"
    assert not missing, f"add {missing} to {tables}"
    assert sorted(rows) == sorted(described & of_users), "a route is gone, or has several rows"


def test_other_users_are_refused_without_a_write(world: Cluster) -> None:
    for route, request in refused_calls():
        with recorded_table(world) as table:
            answer = ask(world, route, request, OTHER)
        assert (answer.status, answer.code) == (403, "forbidden"), (route, answer.body)
        message = answer.json["error"]["message"]
        assert "belongs to user-1" in message, route
        assert "ask user-1 or an admin" in message, route
        assert table.commits == [], route


@pytest.mark.parametrize("token", [OWNER, ADMIN], ids=["owner", "admin"])
def test_owner_and_admin_are_not_refused(world: Cluster, token: str) -> None:
    for route, request in refused_calls():
        is_refused = ask(world, route, request, token).status in (401, 403)
        assert is_refused == (token == OWNER and request.names_others), route


def test_other_users_may_call_shared_routes(world: Cluster) -> None:
    for route, (request, reason) in ALLOWED_TO_OTHERS.items():
        answer = ask(world, route, request, OTHER)
        assert answer.status not in (401, 403), (route, reason)
        rule = access_rules()[route[0], V1 + route[1]]
        assert rule.changes is only_own, route


def test_admin_routes_refuse_owners(world: Cluster) -> None:
    for route, request in ADMINS_ONLY.items():
        assert ask(world, route, request, OWNER).status == 403, route
        assert ask(world, route, request, ADMIN).status not in (401, 403), route


def test_changing_route_must_declare_changes(cluster: Cluster) -> None:
    router = guarded_router("things")

    @require_role(Role.USER)
    def change() -> None: ...

    for method in ("post", "put", "patch", "delete"):
        with pytest.raises(TypeError, match="/things: say what it `changes`"):
            getattr(router, method)("/things")(change)
    router.get("/things")(change)


def test_other_readers_of_search_events_are_not_recorded(world: Cluster) -> None:
    route, read = ("GET", ""), Call("/experiments/3/searcher-events")
    assert ask(world, route, read, OTHER).status == 200
    assert world.get("/experiments/3").json["search_method"]["heard_ms"] is None
    assert ask(world, route, read, OWNER).status == 200
    assert world.get("/experiments/3").json["search_method"]["heard_ms"] is not None


def test_repeated_deletion_returns_the_first_answer(world: Cluster) -> None:
    for target in ("/templates/base", "/models/digits"):
        answers = [
            call(
                world.app,
                "DELETE",
                V1 + target,
                token=OWNER,
                headers=[("idempotency-key", target)],
            )
            for _ in range(2)
        ]
        assert [answer.status for answer in answers] == [200, 200]
        assert answers[0].body == answers[1].body


def test_users_may_create_objects_under_new_names(world: Cluster) -> None:
    put = ("PUT", "/templates/{name}")
    assert ask(world, put, Call("/templates/new", {"config": "{}"}), OTHER).status == 200
    assert ask(world, put, Call("/templates/new", {"config": "{}"}), OWNER).status == 403


def test_model_version_belongs_to_registrant_and_model_owner() -> None:
    version = OwnedObject("version digits/1", ("ann", "bob"))
    for name in ("ann", "bob"):
        assert find_refusal(Principal(name, Role.USER), Action.DELETE, version) is None
    refusal = find_refusal(Principal("eve", Role.USER), Action.DELETE, version)
    expected = "version digits/1 belongs to ann and bob: ask ann or bob or an admin to delete it"
    assert refusal == expected
    assert find_refusal(Principal("eve", Role.ADMIN), Action.DELETE, version) is None


def test_missing_experiment_is_refused_before_the_effect(cluster: Cluster) -> None:
    # An experiment that is created between the lookup of the owner and the change would escape the
    # check. The lookup therefore refuses missing experiments.
    answer = ask(cluster, ("POST", ""), Call("/experiments/9/kill"), OWNER)
    assert (answer.status, answer.code) == (404, "not_found")
    body = Call("/experiments/9/searcher-operations", {})
    assert ask(cluster, ("POST", ""), body, OWNER).status == 404
    assert ask(cluster, ("POST", ""), Call("/trials/9/kill"), OWNER).status == 404
