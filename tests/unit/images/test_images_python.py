"""The code that runs in a machine image's old Python, before the boot installs a newer Python."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PROCESS_SECONDS_MAX

ROOT = Path(__file__).parents[3]
BOOT = ROOT / "images/boot"
OLDEST = (3, 10)
# Names of the standard library and builtins that are newer than Python 3.10.
NEWER = {
    "BaseExceptionGroup", "ExceptionGroup", "HTTPMethod", "LiteralString", "Never", "NotRequired",
    "ReprEnum", "Required", "Self", "StrEnum", "TaskGroup", "TypeVarTuple", "UTC", "Unpack",
    "add_note", "assert_never", "batched", "chdir", "file_digest", "override", "tomllib",
}  # fmt: skip
NO_METADATA = {
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1",
    "GCE_METADATA_HOST": "127.0.0.1:1",
}
# Prints the files that a boot report imports, including the imports of a proof of identity.
PROVE = """
import sys
import detcloud.agent.boot_report
from detcloud.agent.clouds import CLOUDS, load_instance
for cloud in CLOUDS:
    try:
        load_instance(cloud.name).make_proof("cluster", "0" * 64)
    except OSError:
        pass
for name, module in sys.modules.items():
    if name.partition(".")[0] == "detcloud":
        print(module.__file__)
"""


def early_modules() -> list[Path]:
    """Return the files that the machine's own Python imports: fetchers and boot reports."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROVE],
        env={**os.environ, **NO_METADATA},
        cwd=ROOT / "harness",
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return [*sorted(BOOT.glob("*.py")), *(Path(line) for line in lines if line.endswith(".py"))]


def newer_names(source: str) -> set[str]:
    """Return the names in a module that Python 3.10 lacks. Raise SyntaxError for newer syntax."""
    names_used: set[str] = set()
    for node in ast.walk(ast.parse(source, feature_version=OLDEST)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                names_used.add(name)
            case ast.ImportFrom(module=module, names=names):
                names_used |= {module or "", *(alias.name for alias in names)}
            case ast.Import(names=names):
                names_used |= {alias.name for alias in names}
    return names_used & NEWER


def test_code_before_the_installation_needs_no_newer_python() -> None:
    modules = early_modules()
    assert {"role_signature.py", "boot_report.py", "instance_identity.py"} <= {
        path.name for path in modules
    }
    newer_by_path = {str(path.relative_to(ROOT)): newer_names(path.read_text()) for path in modules}
    assert {path: names for path, names in newer_by_path.items() if names} == {}


def test_rule_finds_newer_names_and_syntax() -> None:
    assert newer_names("import datetime\ndatetime.datetime.now(datetime.UTC)") == {"UTC"}
    assert newer_names("from typing import Self\nimport tomllib") == {"Self", "tomllib"}
    with pytest.raises(SyntaxError):
        newer_names("try:\n    pass\nexcept* OSError:\n    pass")
