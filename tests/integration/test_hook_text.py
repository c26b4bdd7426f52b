"""Startup hooks saved on other systems, and variables that shells do not support."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.trial_node import TrialNode, exit_record, log_text

pytestmark = pytest.mark.end_to_end

HOOK = "if true; then\n  echo hooked\nfi\nexport MADE=here\n"


@pytest.fixture
def node(tmp_path: Path) -> TrialNode:
    return TrialNode(tmp_path / "work")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (HOOK.replace("\n", "\r\n").encode(), "CRLF"),
        (b"\xef\xbb\xbf" + HOOK.encode(), "byte order mark"),
        (b"\xef\xbb\xbf" + HOOK.replace("\n", "\r\n").encode(), "byte order mark and carriage"),
        (HOOK.replace("\n", "\r\n").encode("utf-16"), "byte order mark and carriage"),
        (b"\xfe\xff" + HOOK.encode("utf-16-be"), "byte order mark"),
    ],
)
def test_hook_saved_on_windows_runs(node: TrialNode, content: bytes, cause: str) -> None:
    trial = node.run("1.1", {"startup-hook.sh": content}, entrypoint="echo made=$MADE.")
    assert exit_record(trial)["code"] == 0, log_text(trial)
    lines = log_text(trial).splitlines()
    assert lines[0].startswith("[detcloud] startup-hook.sh has ")
    assert cause in lines[0]
    assert lines[1:] == ["hooked", "made=here."]


@pytest.mark.parametrize("hook", [None, "true\n"])
@pytest.mark.parametrize("form", ["text", "list", "class"])
def test_variables_that_shells_do_not_support_reach_the_trial(
    node: TrialNode, form: str, hook: str | None
) -> None:
    show = "import os; print(os.environ['my-var'], os.environ['a.b'])"
    entrypoints: dict[str, str | list[str]] = {
        "text": f'true && python3 -c "{show}"',
        "list": ["python3", "-c", show],
        "class": "model_def:Trial",
    }
    files = {"model_def.py": f"{show}\nraise SystemExit(0)\n"}
    if hook is not None:
        files["startup-hook.sh"] = hook
    variables = ["my-var=1 2", "a.b=ü"]
    trial = node.run("1.1", files, entrypoint=entrypoints[form], environment_variables=variables)
    assert "1 2 ü" in log_text(trial), log_text(trial)
    assert exit_record(trial)["code"] == 0, log_text(trial)
