"""Hostile files of real trial processes in out/: the agent sends sound lines and survives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.agent_cluster import FakeCluster
from tests.integration.agent_process import GO, LEAVE, PRELUDE, AgentProcess
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

FINE = 'report("progress", value=0.5)\n'


def warnings(cluster: FakeCluster, allocation: str = "4.1") -> list[str]:
    lines = cluster.lines(allocation)
    return [line["message"] for line in lines if line["kind"] == "agent_warning"]


def ran(agent: AgentProcess, cluster: FakeCluster, program: str) -> dict[str, Any]:
    """Run a trial with this program; return the exit record.

    A neighbour trial must complete.
    """
    cluster.assign("4.1", PRELUDE + program)
    cluster.assign("5.1", PRELUDE + FINE + LEAVE)
    process = agent.start()
    wait_until(lambda: cluster.exit_record("4.1") and cluster.exit_record("5.1"))
    assert process.poll() is None
    assert [line["kind"] for line in cluster.lines("5.1")] == ["progress", "exit"]
    record = cluster.exit_record("4.1")
    assert record is not None
    return record


@pytest.mark.parametrize(
    ("replacement", "why"),
    [
        ("os.symlink('/etc/passwd', path)", "a link"),
        ("os.symlink(f'{home}/in/spec.json', path)", "a link to a file of the trial"),
        ("os.symlink('/dev/zero', path)", "a link to a device"),
        ("os.mkfifo(path)", "a pipe without a writer"),
        ("os.mkdir(path)", "a directory"),
        ("os.link(f'{home}/agent/report-agent.jsonl', path)", "a file of the agent"),
        ("import socket; socket.socket(socket.AF_UNIX).bind(path[-100:])", "a socket"),
    ],
)
def test_report_that_is_not_a_plain_file_is_not_read(
    agent: AgentProcess, cluster: FakeCluster, replacement: str, why: str
) -> None:
    program = f"""
os.remove(f"{{home}}/out/report-0.jsonl")
os.chdir(f"{{home}}/out")
path = "report-0.jsonl"
{replacement}
"""
    assert ran(agent, cluster, program)["reason"] == "errored", why
    assert cluster.lines("4.1") == []


@pytest.mark.parametrize("target", ["/etc", "../in", "/dev", "nowhere"])
def test_out_folder_that_becomes_a_link_is_not_followed(
    agent: AgentProcess, cluster: FakeCluster, target: str
) -> None:
    program = f"""
import shutil
shutil.rmtree(f"{{home}}/out")
os.symlink({target!r}, f"{{home}}/out")
"""
    assert ran(agent, cluster, program)["reason"] == "errored"
    assert cluster.lines("4.1") == []


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("""b'{"kind": "metrics", "metrics": {"loss": NaN}}'""", "NaN is not a JSON value"),
        (
            """b'{"kind": "metrics", "metrics": {"loss": -Infinity}}'""",
            "-Infinity is not a JSON value",
        ),
        ("""b'{"kind": "progress", "value": '""", "it is not JSON"),
        ("bytes([255, 254, 0])", "it is not JSON"),
        ("""b'"a string"'""", "it is not a JSON object"),
        ("b'[]'", "it is not a JSON object"),
        ("b'[' * 100_000", "nested more than 64 levels deep"),
        ("""b'{"a":' * 200 + b'"NaN"' + b'}' * 200""", "nested more than 64 levels deep"),
        ("""b'{"a": "\\\\ud83d"}'""", "half a surrogate pair"),
        ("""b'{"a": ' + b'9' * 10_000 + b'}'""", "it is not JSON"),
        ("""b'{"a": "' + b'x' * 300_000 + b'"}'""", "the limit is 262144"),
        ("b'x' * 5_000_000", "a line of 5000000 bytes was skipped"),
    ],
)
def test_invalid_report_line_becomes_a_warning(
    agent: AgentProcess, cluster: FakeCluster, line: str, warning: str
) -> None:
    program = f"""
rest = {line} + b"\\n"
while rest:
    rest = rest[os.write(out, rest):]
"""
    record = ran(agent, cluster, FINE + program + FINE + LEAVE)
    assert record["reason"] == "completed", record
    kinds = [line["kind"] for line in cluster.lines("4.1")]
    assert kinds == ["progress", "agent_warning", "progress", "exit"]
    assert warning in warnings(cluster)[0]
    # The warning is short, whatever the size of the hostile line.
    assert len(warnings(cluster)[0]) < 500


@pytest.mark.parametrize(
    "value",
    ["1e999", '"a fish"', "null", "true", "[[[[]]]]", "-0.0", '"\\ud83d\\ude00"', "1" * 4000],
)
def test_valid_line_with_an_odd_value_is_forwarded_unchanged(
    agent: AgentProcess, cluster: FakeCluster, value: str
) -> None:
    line = f'{{"kind": "metrics", "group": "training", "metrics": {{"loss": {value}}}}}'
    program = f"os.write(out, {line.encode()!r} + b'\\n')\n"
    assert ran(agent, cluster, program + LEAVE)["reason"] == "completed"
    assert cluster.lines("4.1")[0]["metrics"] == {"loss": json.loads(value)}


def test_huge_report_file_stops_neither_agent_nor_neighbour(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    program = 'os.truncate(f"{home}/out/report-0.jsonl", 8 << 40)\n'
    separator = 'os.write(out, b"\\n")\n'
    cluster.assign("4.1", PRELUDE + FINE + program + GO + separator + LEAVE)
    first = agent.start()
    wait_until(lambda: warnings(cluster))
    assert "at most 16 GiB of reports are read" in warnings(cluster)[0]
    first.kill()
    first.wait()
    cluster.assign("5.1", PRELUDE + FINE + LEAVE)
    second = agent.start()
    wait_until(lambda: cluster.exit_record("5.1"))
    agent.let_go("4.1")
    wait_until(lambda: cluster.exit_record("4.1"))
    assert second.poll() is None
    for allocation in ("4.1", "5.1"):
        record = cluster.exit_record(allocation)
        assert record is not None
        assert record["reason"] == "completed"
    assert b"at most 16 GiB" in cluster.log["4.1"]


def test_half_a_line_waits_for_the_rest_and_is_dropped_at_the_end(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    program = """
os.write(out, b'{"kind": "progress", "va')
time.sleep(0.3)
os.write(out, b'lue": 0.25}\\n')
report("exit", reason="completed", directive_revision=1)
os.write(out, b'{"kind": "progress"')
"""
    assert ran(agent, cluster, program)["reason"] == "completed"
    assert [line["kind"] for line in cluster.lines("4.1")] == ["progress", "exit"]
    assert cluster.lines("4.1")[0]["value"] == 0.25


def test_flood_of_lines_arrives_complete_in_order_and_throttled(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    # 5,000 lines are allowed at once, and 1,000 a second afterwards. Each call of 1,000 lines
    # checks the limit first: the last of 8 calls needs 7,000 allowed lines, after 2 s at the
    # earliest.
    program = """
report("ready")
line = b'{"kind": "progress", "value": %d, "note": "' + b"x" * 60 + b'"}\\n'
block = b"".join(line % n for n in range(8000))
os.write(out, block)
"""
    assert ran(agent, cluster, program + LEAVE)["reason"] == "completed"
    values = [line["value"] for line in cluster.lines("4.1") if line["kind"] == "progress"]
    assert values == list(range(8000))
    [began] = [line["time_ms"] for line in cluster.lines("4.1") if line["kind"] == "ready"]
    at = [received.at for received in cluster.reports if received.allocation == "4.1"]
    assert max(at) - began / 1000 > 1.9


def test_report_names_that_are_not_ranks_and_excess_files_are_not_read(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    program = """
for name in ("agent", "00", "-1", "1.jsonl", "x" * 200, "99999999"):
    open(f"{home}/out/report-{name}.jsonl", "w").write('{"kind": "exited", "code": 0}\\n')
for n in range(1, 200):
    open(f"{home}/out/report-{n}.jsonl", "w").write('{"kind": "progress", "value": 1}\\n')
"""
    assert ran(agent, cluster, program + LEAVE)["reason"] == "completed"
    writers = {received.writer for received in cluster.reports if received.allocation == "4.1"}
    assert writers - {"agent"} == {str(n) for n in range(64)}
    assert cluster.kinds("4.1") == ["PULLING", "STARTING", "RUNNING", "exited"]


def test_invalid_archive_fails_the_start_and_a_broken_cache_is_repaired(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    import hashlib

    broken = b"\x1f\x8b" + b"not an archive at all" * 10
    digest = hashlib.sha256(broken).hexdigest()
    cluster.assign("4.1", PRELUDE + LEAVE)
    cluster.archives[digest] = broken
    code = {"sha256": digest, "size": len(broken), "path": f"/api/v1/model-code/{digest}"}
    cluster.change("4.1", code=code)
    cluster.assign("5.1", PRELUDE + FINE + LEAVE)
    intact = cluster.desired["5.1"].code
    assert intact is not None
    # A directory at the place of the cached archive.
    (agent.work / f"cache/code/{intact['sha256']}.tar.gz/below").mkdir(parents=True)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1") and cluster.exit_record("5.1"))
    refused, ended = cluster.exit_record("4.1"), cluster.exit_record("5.1")
    assert refused is not None
    assert ended is not None
    assert refused["reason"] == "start_failed"
    assert "the model code was refused: it is not a complete .tar.gz file" in refused["message"]
    assert ended["reason"] == "completed"


BAD_NEIGHBOURS = {
    "a pipe for a report": 'os.remove(path := f"{home}/out/report-0.jsonl"); os.mkfifo(path)',
    "8 TiB of nothing": 'os.truncate(f"{home}/out/report-0.jsonl", 8 << 40)',
    "a line nested 200 deep": """os.write(out, b'{"a":' * 200 + b'"NaN"' + b'}' * 200 + b"\\n")""",
    "a long line without an end": 'os.write(out, b"x" * 3_000_000)',
    "a folder 1,200 deep": 'for _ in range(1200): os.mkdir("d"); os.chdir("d")',
    "no inputs any more": 'import shutil; shutil.rmtree(f"{home}/in")',
    "a log of one line": 'os.write(1, b"y" * 3_000_000)',
    "a report of text that is none": 'os.write(out, bytes(range(128, 256)) * 5000 + b"\\n")',
}


def test_bad_neighbours_and_a_killed_agent_do_not_harm_a_good_trial(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    stay = 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport("progress", value=1)\n'
    for number, attack in enumerate(BAD_NEIGHBOURS.values(), 10):
        wait = "while True: time.sleep(1)\n"
        cluster.assign(f"{number}.1", PRELUDE + stay + attack + "\nprint('done')\n" + wait)
    cluster.assign("4.1", PRELUDE + FINE + GO + FINE + LEAVE)
    first = agent.start()
    bad = [f"{number}.1" for number, _ in enumerate(BAD_NEIGHBOURS, 10)]
    wait_until(lambda: all(b"done" in cluster.log.get(name, b"") for name in bad))
    first.kill()
    first.wait()
    second = agent.start()
    agent.let_go("4.1")
    cluster.assign("5.1", PRELUDE + FINE + LEAVE)
    wait_until(lambda: cluster.exit_record("4.1") and cluster.exit_record("5.1"))
    for name in bad:
        cluster.change(name, state="kill", grace_ms=100)
    wait_until(lambda: all(cluster.exit_record(name) for name in bad))
    assert second.poll() is None
    assert [line["kind"] for line in cluster.lines("4.1")] == ["progress", "progress", "exit"]
    assert [line["kind"] for line in cluster.lines("5.1")] == ["progress", "exit"]
    for name in bad:
        record = cluster.exit_record(name)
        assert record is not None
        assert record["reason"] == "killed"
