"""The rows of each release in `rows.json`, recorded by `python -m tests.journals.row_files`.

The file has the declaration of each family of rows, the fields of its record with their defaults,
and a stored body of most families.
"""

import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic_core import to_jsonable_python

from control_plane.access import relay_record
from control_plane.access.principals import Principal, Role
from control_plane.actors.cost import Usage, encode_usage, usage_partition, usage_sort_key
from control_plane.actors.event_routes import EventType, Route, Trigger
from control_plane.agents.failed_syncs import FailedSyncs
from control_plane.checkpoint_gc.upload_sessions import UploadSessions
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.fleet.notices import InstanceNotice, record_notice
from control_plane.fleet.usage_days import sum_closed_days
from control_plane.restoration.incarnation import incarnation_write
from control_plane.row_reference import load_record
from control_plane.rows.registry import ROW_TYPES, find_row_type
from control_plane.rows.row_type import RowType
from control_plane.rows.stored_fields import stored_field_names
from control_plane.state.table import Expect, Key, Put, Write
from control_plane.usecases import browser_sessions
from control_plane.usecases.experiment_views import ViewRecord, put_view
from control_plane.usecases.pool_settings import configure_pool, store_shared_config
from control_plane.usecases.reports import ReportContent, Sharing, create_report
from control_plane.usecases.webhooks import (
    WebhookChange,
    WebhookRequest,
    change_webhook,
    create_webhook,
)
from detcloud import __version__
from simulator.faults.fault_rates import NO_FAULTS
from simulator.seeded.simulated_cluster import ClusterSize, SimulatedCluster
from tests.journals.journal_files import FOLDER
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import NOW_MS, TOKENS, Cluster, build_cluster
from tests.unit.rows.test_rows_unknown_fields import CASES, UUID

ROWS = "rows.json"
REQUIRED = "required"
DAY_MS = 86_400_000

Sample = tuple[Key, bytes]
"""The key and the body of a stored row."""


def main() -> int:
    """Write the file of this version, and print the families without a stored row."""
    with TemporaryDirectory() as folder:
        samples = collect_samples(Path(folder))
    content = {
        row_type.name: describe_row_type(row_type) | describe_sample(samples.get(row_type.name))
        for row_type in ROW_TYPES
    }
    text = json.dumps(content, indent=1, sort_keys=True)
    (FOLDER / __version__ / ROWS).write_text(f"{text}\n", encoding="utf-8")
    print("without a row:", ", ".join(sorted(content.keys() - samples.keys())))
    return 0


def describe_row_type(row_type: RowType) -> dict[str, Any]:
    """Return the parts of a declaration that stored rows depend on."""
    return {
        "key": row_type.key,
        "wakes": list(row_type.wakes),
        "fields": stored_fields(row_type),
    }


def stored_fields(row_type: RowType) -> dict[str, Any]:
    """Return the default of each field by stored name, and REQUIRED for a field without a default.

    Fields without a class have no defaults, so they are None.
    """
    record = load_record(row_type)
    if record is None:
        return dict.fromkeys(row_type.fields)
    return _defaults(record)


def describe_sample(sample: Sample | None) -> dict[str, Any]:
    if sample is None:
        return {}
    (partition, sort), body = sample
    try:
        text, encoding = body.decode(), "text"
    except UnicodeDecodeError:
        text, encoding = b64encode(body).decode(), "base64"
    return {"row": {"partition": partition, "sort": sort, encoding: text}}


def read_sample(described: Mapping[str, Any]) -> Sample | None:
    row = described.get("row")
    if row is None:
        return None
    body = b64decode(row["base64"]) if "base64" in row else row["text"].encode()
    return Key(row["partition"], row["sort"]), body


def collect_samples(folder: Path) -> dict[str, Sample]:
    """Return a stored row of each family, from a simulated cluster and the tests of rewrites."""
    samples: dict[str, Sample] = {}

    def add(writes: Sequence[Write]) -> None:
        for write in writes:
            row_type = find_row_type(*write.key)
            if isinstance(write, Put) and row_type is not None and write.body:
                samples.setdefault(row_type.name, (write.key, write.body))

    for number, case in enumerate(CASES.values()):
        cluster = build_cluster(folder / str(number))
        _observe(cluster, add)
        _, rewrite = case(cluster)
        rewrite()
    cluster = build_cluster(folder / "more")
    _observe(cluster, add)
    _store_more_rows(cluster)
    size = ClusterSize(experiments=4, pools=2, machines_max=4, hours=2)
    home = folder / "simulated"
    home.mkdir()
    simulated = SimulatedCluster(1, replace(NO_FAULTS, losses_hourly=0.5), size, home)
    apply_commit = simulated.checker.apply_commit

    def observe_commit(writes: Sequence[Write]) -> None:
        add(writes)
        apply_commit(writes)

    simulated.checker.apply_commit = observe_commit  # type: ignore[method-assign]
    simulated.run()
    return samples


def _store_more_rows(cluster: Cluster) -> None:
    """Store rows of users, agents and operators that no test of rewrites stores."""
    services, table = cluster.services, cluster.services.table
    cluster.create(CONFIG)
    agent = Agent(cluster)
    allocation, *_ = agent.take_work()
    agent.log(allocation, 0, "line\n")
    rank = {"kind": "rank_metrics", "group": "validation", "steps_completed": 10}
    agent.report(allocation, {"kind": "environment", "python": "3.11"}, metrics(5, loss=0.5))
    agent.report(allocation, {**rank, "metrics": {"loss": 0.5}, "time_ms": 5}, writer="1")
    caller = Principal("a", Role.USER)
    browser_sessions.create_sign_in_code(services, caller, TOKENS[Role.USER])
    pool = ResourcePool(pool_name="default")
    configure_pool(services, pool, ClusterConfig(resource_pools=(pool,)), "a")
    store_shared_config(services, ClusterConfig(resource_pools=(pool,)), lambda _: ())
    record_notice(table, InstanceNotice("i-1", NOW_MS), NOW_MS)
    FailedSyncs(table).record(NOW_MS)
    table.commit((incarnation_write("00000000-0000-4000-8000-000000000001"),))
    attempt = relay_record.RelayRecord("attempt-1", "c2VjcmV0", NOW_MS)
    body = relay_record.encode_relay(attempt)
    table.commit((Put(relay_record.KEY, NOW_MS, body, Expect.ABSENT),))
    view = ViewRecord("fast", "a", True, "lr>0.1", ("name",), "id", "desc", "", NOW_MS, NOW_MS)
    put_view(table, view, lambda _: ())
    content = ReportContent("Digits", "# Digits\n", Sharing.READ)
    create_report(table, content, caller, NOW_MS, lambda _: ())
    triggers = (Trigger(EventType.EXPERIMENT_STATE_CHANGE, states=("ERROR",)),)
    url = "https://api.github.com/repos/team/digits"
    wanted = WebhookRequest("hook", url, "github", Route(0, "hook", triggers), token="token")
    hook = create_webhook(table, wanted, caller, NOW_MS, lambda _: ())
    change = WebhookChange(route={"triggers": (Trigger(EventType.EXPERIMENT_STATE_CHANGE),)})
    change_webhook(table, hook.id, change, caller, NOW_MS, lambda _: ())
    usage = Usage(1, 1, 1, NOW_MS - 4 * DAY_MS, NOW_MS - 3 * DAY_MS, 1_000_000, 2, 9, 5, 4, 3)
    key = Key(usage_partition("default"), usage_sort_key(usage))
    table.commit((Put(key, 1, encode_usage(usage), Expect.ABSENT),))
    sum_closed_days(table, "default", NOW_MS)
    sessions = UploadSessions(table, 1, UUID, "model.pt")
    sessions.keep("upload-1", None)
    kept_briefly = cluster.create(f"{CONFIG}\nretention_policy: {{log_retention_days: 7}}\n")
    cluster.post(f"/experiments/{kept_briefly.json['id']}/kill", {})


def _observe(cluster: Cluster, add: Callable[[Sequence[Write]], None]) -> None:
    """Call `add` with the writes of each commit to the cluster's table."""
    table = cluster.services.table
    commit = table.commit

    def observe_commit(writes: Sequence[Write]) -> None:
        commit(writes)
        add(writes)

    table.commit = observe_commit  # type: ignore[method-assign]


def _defaults(record: type) -> dict[str, Any]:
    if is_dataclass(record):
        found, stored_names = {}, stored_field_names(record)
        for field in fields(record):
            default = field.default
            if field.default_factory is not MISSING:
                default = field.default_factory()
            found[stored_names[field.name]] = (
                REQUIRED if default is MISSING else to_jsonable_python(default)
            )
        return found
    models: Mapping[str, Any] | None = getattr(record, "model_fields", None)
    if models is not None:
        return {name: REQUIRED if field.is_required() else None for name, field in models.items()}
    # A named tuple.
    defaults: Mapping[str, Any] = record._field_defaults  # type: ignore[attr-defined]
    names: tuple[str, ...] = record._fields  # type: ignore[attr-defined]
    return {name: to_jsonable_python(defaults.get(name, REQUIRED)) for name in names}


if __name__ == "__main__":
    sys.exit(main())
