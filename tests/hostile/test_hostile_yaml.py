"""Hostile YAML by every way in.

The ways are a configuration, a template, an override, and an override of a template. Each is
refused quickly with the reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plane.access.principals import Role
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call

# Seconds of a processor, which do not grow on a busy machine.
SECONDS_MAX = 5.0

Way = Callable[[Cluster, str], Answer]


def submit_experiment(cluster: Cluster, text: str) -> Answer:
    return cluster.create(f"{CONFIG}\n{text}")


def store_template(cluster: Cluster, text: str) -> Answer:
    path = f"{V1}/templates/hostile"
    return call(
        cluster.app, "PUT", path, token=TOKENS[Role.USER], content={"config": f"a: 1\n{text}"}
    )


def submit_override(cluster: Cluster, text: str) -> Answer:
    """Submit the beginning of the text, up to the length limit of an override."""
    return cluster.create(CONFIG, overrides=[f"data={text[:4000]}"])


WAYS: dict[str, Way] = {
    "experiment": submit_experiment,
    "template": store_template,
    "override": submit_override,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def bomb(levels: int, width: int = 9, kind: str = "list") -> str:
    """Return a billion laughs: each level refers to the previous level several times."""
    lines = ["x0: &x0 [lol]"]
    for n in range(1, levels):
        names = [f"*x{n - 1}"] * width
        inner = (
            f"[{', '.join(names)}]"
            if kind == "list"
            else "{" + ", ".join(f"k{i}: {name}" for i, name in enumerate(names)) + "}"
        )
        lines.append(f"x{n}: &x{n} {inner}")
    return "{" + ", ".join(lines) + "}" if kind == "flow" else "\n".join(lines)


HOSTILE = {
    "lists of aliases": bomb(12),
    "maps of aliases": bomb(12, kind="map"),
    "aliases of aliases": "a: &a [b]\n" + "\n".join(f"c{n}: *a" for n in range(99_000)),
    "merges of merges": "m0: &m0 {k: 1}\n"
    + "\n".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}], k{n}: 1}}" for n in range(1, 3000)),
    "a merge of itself": "a: &a {<<: *a}",
    "a merge of no map": "data: {<<: [1, 2]}",
    "a Python object": "data: !!python/object/apply:os.system [id]",
    "a Python name": "data: !!python/name:os.system",
    "a Python module": "data: !!python/module:os",
    "a tag of anybody": "data: !x y",
    "binary": "data: !!binary aGVsbG8=",
    "a set": "data: !!set {a, b}",
    "a timestamp tag": "data: !!timestamp 2001-01-01",
    "a tag directive": "%TAG ! tag:yaml.org,2002:\n---\na: 1",
    "deep lists": "data: " + "[" * 5_000 + "]" * 5_000,
    "deep maps": "data: " + "{a: " * 3_000 + "1" + "}" * 3_000,
    "deep blocks": "\n".join(" " * n + "- " for n in range(2_000)),
    "open lists": "data: " + "[" * 30_000,
    "deep keys": "? " * 3_000,
    "a long number": "data: " + "9" * 40_000,
    "a long hexadecimal number": "data: 0x" + "f" * 40_000,
    "a long binary number": "data: 0b" + "1" * 40_000,
    "a huge float": "data: 1e999999999",
    "underscores": "data: 0x" + "_" * 40_000,
    "a number of base 60": "data: 190:20:30:40:50:60:70:80",
    "not a number": "data: .nan",
    "infinity": "data: -.inf",
    "a NUL": "data: a\0b",
    "an escaped NUL": 'data: "\\0"',
    "half a surrogate": 'data: "\\ud800"',
    "a bell": "data: \x07",
    "an escape": "data: \x1b[2J",
    "a second document": "---\na: 1\n...\n---\nb: 2",
    "an end and more": "a: 1\n...\nb: 2",
    "duplicate keys": "data: {a: 1, a: 2}",
    "duplicate keys twice": "max_restarts: 1\nmax_restarts: 2",
    "a key that is a list": "data: {[1, 2]: 3}",
    "a key that is a map": "data: {{a: 1}: 3}",
    "an alias that is a key": "a: &a b\ndata: {*a : 1}",
    "tabs": "data:\n\ta: 1",
    "an anchor without end": "a: &" + "x" * 40_000 + " 1",
    "many anchors": "\n".join(f"a{n}: &a{n} 1" for n in range(9_000)),
    "a comment without end": "#" * 47_000,
    "many comments": "#\n" * 23_000,
    "quotes without end": "data: '" + "''" * 20_000,
    "a folded text": "data: >\n" + " x\n" * 15_000,
    "colons": "data: " + ": " * 20_000,
    "dashes": "- " * 20_000,
    "question marks": "? " * 20_000,
    "percent signs": "%" * 40_000,
    "a byte order mark within": "data: \ufeffx",
    "line separators": "data: a\u2028b\u2029c\x85d",
}
# Valid as user data, although odd.
ODD_BUT_FINE = {
    "a number of base 60",
    "underscores",
    "a comment without end",
    "many comments",
    "line separators",
    "a byte order mark within",
    "a folded text",
    "many anchors",
    "an anchor without end",
    "aliases of aliases",
    "merges of merges",
    "colons",
    "an end and more",
}


@every_way
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_quickly_with_a_reason(
    cluster: Cluster, way: Way, name: str
) -> None:
    cluster.store_code()
    before = cluster.get("/experiments").json
    began = time.process_time()
    answer = way(cluster, HOSTILE[name])
    assert time.process_time() - began < SECONDS_MAX
    assert answer.status in (200, 201, 413, 422), answer.body[:500]
    if answer.status == 422:
        error = answer.json["error"]
        assert error["code"] == "invalid"
        assert all(len(detail["message"]) < 1000 for detail in error["details"]), error
        assert len(error["details"]) <= 200
        assert len(answer.body) < 64 * 1024
    if answer.status != 201:
        assert cluster.get("/experiments").json == before
    if way is submit_experiment and name not in ODD_BUT_FINE:
        assert answer.status == 422, answer.body[:500]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_configuration_in_a_wrong_encoding_is_refused(cluster: Cluster, encoding: str) -> None:
    cluster.store_code()
    # As received: bytes of another encoding are not text in JSON, unless each byte becomes a
    # character.
    text = CONFIG.encode(encoding).decode("latin-1")
    answer = cluster.create(text)
    assert (answer.status, answer.code) == (422, "invalid")


def test_byte_order_mark_at_the_beginning_is_ignored(cluster: Cluster) -> None:
    assert cluster.create(f"\ufeff{CONFIG}", validate_only=True).status == 200


GRID = """
name: grid
entrypoint: python train.py
searcher: {name: grid, metric: loss, max_length: {batches: 10}}
hyperparameters:
"""


@pytest.mark.parametrize(
    ("axes", "count", "number"),
    [
        (9, 10, "1,000,000,000"),
        (3, 1_000, "1,000,000,000"),
        (1, 10**9, "1,000,000,000"),
        (60, 100, "10" + "0" * 3),
        (7, 10, "10,000,000"),
    ],
)
def test_grid_with_too_many_points_is_refused_with_the_number(
    cluster: Cluster, axes: int, count: int, number: str
) -> None:
    lines = [f"  x{n}: {{type: double, minval: 0, maxval: 1, count: {count}}}" for n in range(axes)]
    began = time.process_time()
    answer = cluster.create(GRID + "\n".join(lines))
    assert time.process_time() - began < SECONDS_MAX
    assert (answer.status, answer.code) == (422, "invalid")
    error = json.dumps(answer.json["error"]).replace(",", "").replace("_", "")
    assert number.replace(",", "") in error, error
    assert cluster.get("/experiments").json["items"] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("searcher.max_trials", 10**9),
        ("searcher.max_trials", 10**30),
        ("searcher.max_length.batches", 2**63),
        ("searcher.max_concurrent_trials", 10**18),
        ("resources.slots_per_trial", 10**20),
        ("resources.priority", 10**9),
        ("max_restarts", 10**20),
        ("min_validation_period.batches", 10**25),
        ("scheduling_unit", 10**25),
        ("checkpoint_storage.save_trial_best", 10**30),
        ("reproducibility.experiment_seed", 10**30),
    ],
)
def test_huge_number_in_a_configuration_is_refused(
    cluster: Cluster, field: str, value: int
) -> None:
    answer = cluster.create(CONFIG, overrides=[f"{field}={value}"])
    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    assert any(field in detail["path"] for detail in answer.json["error"]["details"])


@pytest.mark.parametrize(
    "override",
    [
        "",
        "=",
        "=1",
        "a",
        ".=1",
        "a..b=1",
        "." * 200 + "=1",
        ".".join("a" * 100) + "=1",
        "data" + ".a" * 2000 + "=1",
        "searcher=1",
        "searcher.name",
        "entrypoint.x=1",
        "data=[",
        "data={a: 1, a: 2}",
        "data=*a",
        "data=&a [*a]",
        "data=" + "[" * 100,
        "data=!!python/name:os.system",
        "hyperparameters.x=" + "9" * 4000,
        "__class__.x=1",
        "era=1",
        "config=1",
    ],
    ids=lambda override: override[:20],
)
def test_malformed_override_is_refused_with_the_place(cluster: Cluster, override: str) -> None:
    answer = cluster.create(CONFIG, overrides=[override])
    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    assert answer.json["error"]["details"]


def test_costs_of_template_and_overrides_do_not_multiply(cluster: Cluster) -> None:
    wide = "data: {" + ", ".join(f"k{n}: &a{n} [1, 2, 3]" for n in range(2_000)) + "}"
    path = f"{V1}/templates/wide"
    put = call(cluster.app, "PUT", path, token=TOKENS[Role.USER], content={"config": wide})
    assert put.status == 200
    overrides = [f"data.k{n}.a=1" for n in range(200)]
    began = time.process_time()
    answer = cluster.create(CONFIG, template="wide", overrides=overrides)
    assert time.process_time() - began < SECONDS_MAX
    assert answer.status in (201, 422)
    # A configuration at the size limit, over a template at the size limit.
    near = "data: {" + ", ".join(f"j{n}: [1, 2]" for n in range(20_000)) + "}"
    began = time.process_time()
    answer = cluster.create(f"{CONFIG}\n{near}", template="wide")
    assert time.process_time() - began < 2 * SECONDS_MAX
    assert answer.status in (201, 413, 422), answer.body[:300]


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(
    st.text("{}[]&*!:-?|>'\" \n\tab1.,<#%@`\\\0\ufeff~=", max_size=80),
    st.sampled_from(sorted(WAYS)),
)
def test_any_configuration_text_is_answered(
    tmp_path_factory: pytest.TempPathFactory, text: str, way: str
) -> None:
    answer = WAYS[way](_shared_cluster(tmp_path_factory), text)
    assert answer.status in (200, 201, 422), (text, answer.body)


_CLUSTERS: list[Cluster] = []


def _shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    if not _CLUSTERS:
        _CLUSTERS.append(build_cluster(tmp_path_factory.mktemp("yaml")))
    return _CLUSTERS[0]
