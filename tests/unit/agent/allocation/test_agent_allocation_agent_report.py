from __future__ import annotations

from pathlib import Path

from detcloud.agent.allocation.agent_report import AgentReport


def test_record_after_a_torn_record_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "report-agent.jsonl"
    path.write_bytes(b'{"kind":"container"}\n{"ki')
    report = AgentReport(path)
    report.append("exited", code=0)
    report.append("more")
    assert [line.kind for line in report.lines(0)] == [
        "container",
        "agent_warning",
        "exited",
        "more",
    ]
    assert report.lines(0)[-1].offset == report.size
    assert [record["kind"] for record in report.records()] == ["container", "exited", "more"]
