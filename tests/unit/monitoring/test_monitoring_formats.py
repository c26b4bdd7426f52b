"""The text formats of the metrics, and the tokens that read the metrics."""

import json
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_fd_to_metric_families

from control_plane.access.principals import Role
from control_plane.access.tokens import token_digest
from control_plane.monitoring.exposition import render_metrics
from control_plane.monitoring.families import FAMILIES, INFO, Sample
from control_plane.rows import user_rows
from control_plane.state.table import Key
from tests.emulators.server import require_program
from tests.patience import ANSWER_SECONDS_MAX
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import call
from tests.unit.monitoring.scrapes import scrape

# The header of Prometheus 2.42.
DOCUMENT = Path(__file__).parents[3] / "docs" / "monitoring.md"
PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def test_text_format_is_the_default(cluster: Cluster) -> None:
    answer = scrape(cluster)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {family.name for family in text_fd_to_metric_families(StringIO(answer.body.decode()))}
    # The parser leaves out the suffix of counters.
    assert found == {family.name.removesuffix("_total") for family in FAMILIES}


def test_openmetrics_is_sent_if_accepted(cluster: Cluster) -> None:
    answer = scrape(cluster, PROMETHEUS_ACCEPT)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.body.endswith(b"# EOF\n")
    text = StringIO(answer.body.decode())
    found = openmetrics.text_fd_to_metric_families(text)  # type: ignore[no-untyped-call]
    assert len(list(found)) == len(FAMILIES)


@pytest.mark.parametrize(
    "accept",
    ["text/plain;version=x", "text/plain;version=99;escaping=a\tb", ";,;,", "*/*", "\xff", "a,b"],
)
def test_unusual_accept_headers_get_the_text_format(cluster: Cluster, accept: str) -> None:
    answer = scrape(cluster, accept)
    assert (answer.status, answer.headers["content-type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )


def test_too_long_accept_header_is_refused(cluster: Cluster) -> None:
    assert scrape(cluster, "a" * 1001).status == 422


def test_values_of_labels_are_escaped() -> None:
    hostile = 'x"\n{}\\'
    text = render_metrics([Sample(INFO, (hostile, "1"), 1)], "").content.decode()
    [family] = [
        family for family in text_fd_to_metric_families(StringIO(text)) if family.name == INFO.name
    ]
    assert family.samples[0].labels["cluster"] == hostile


def test_promtool_accepts_the_metrics(cluster: Cluster) -> None:
    promtool = require_program("promtool", remedy="it is in Debian's package prometheus")
    cluster.create(CONFIG)
    Agent(cluster)
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=scrape(cluster).body,
        capture_output=True,
        timeout=ANSWER_SECONDS_MAX,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def make_token(cluster: Cluster, **fields: object) -> dict[str, object]:
    answer = cluster.post("/tokens", {"role": "metrics", **fields})
    assert answer.status == 201, answer.body
    return dict(answer.json)


def test_user_creates_a_token_that_only_reads_metrics(cluster: Cluster) -> None:
    made = make_token(cluster, description="prometheus")
    assert made["role"] == "metrics"
    token = str(made["token"])
    assert scrape(cluster, token=token).status == 200
    for path in ("/whoami", "/experiments", "/tokens", "/cluster"):
        answer = call(cluster.app, "GET", V1 + path, token=token)
        assert (answer.status, answer.code) == (403, "forbidden")
    listed = cluster.get("/tokens").json["items"]
    assert [item["role"] for item in listed] == ["metrics"]


def test_revoked_metrics_token_reads_nothing(cluster: Cluster) -> None:
    made = make_token(cluster)
    path = f"{V1}/tokens/{made['id']}"
    answer = call(cluster.app, "DELETE", path, token=TOKENS[Role.USER])
    assert (answer.status, answer.json["role"]) == (200, "metrics")
    assert scrape(cluster, token=str(made["token"])).status == 401


def test_metrics_token_names_no_pool(cluster: Cluster) -> None:
    answer = cluster.post("/tokens", {"role": "metrics", "resource_pool": "default"})
    assert (answer.status, answer.code) == (422, "invalid")


def test_older_releases_read_the_token_of_an_agent_without_an_id(cluster: Cluster) -> None:
    made = make_token(cluster)
    table = cluster.services.table
    token = table.get(Key(user_rows.TOKEN.partition, token_digest(str(made["token"]))))
    record = table.get(Key(user_rows.TOKEN_ENTRY.partition, f"{made['id']:012d}"))
    for row in (token, record):
        assert row is not None
        body = json.loads(row.body)
        assert (body["role"], body["subject"], body["stored_role"]) == ("agent", "", "metrics")


def test_rows_of_other_tokens_are_as_before(cluster: Cluster) -> None:
    made = cluster.post("/tokens", {}).json
    record = cluster.services.table.get(Key(user_rows.TOKEN_ENTRY.partition, f"{made['id']:012d}"))
    assert record is not None
    assert "stored_role" not in json.loads(record.body)


def test_document_lists_all_metrics() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        assert f"| `{family.name}` | {labels} | {family.meaning} |" in text
