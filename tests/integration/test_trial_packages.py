"""Packages that trials install: every trial has an environment over the agent's environment."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.trial_node import TrialNode, exit_record, log_text
from tests.wheels import wheel

pytestmark = pytest.mark.end_to_end

NAME = "detcloud_probe"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PROBE = f"import {NAME} as p; print('found', p.VERSION, p.__file__)"
USE = f'python3 -c "{PROBE}"'


@pytest.fixture(autouse=True)
def _parent_unchanged() -> object:
    """Check that no test changes the environment in which the tests run."""
    yield
    importlib.invalidate_caches()
    left = importlib.util.find_spec(NAME) is not None
    if left:
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "-q", "-y", NAME], check=False)
    assert not left


@pytest.fixture
def node(tmp_path: Path) -> TrialNode:
    return TrialNode(tmp_path / "work")


def probe(folder: Path, version: str = "1") -> Path:
    """Write a wheel into a folder and return the path."""
    name, content = wheel(NAME, version, script="probe-script")
    (folder / name).write_bytes(content)
    return folder / name


def found_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("found ")]


@pytest.mark.parametrize(
    "install",
    [
        "pip install -q --no-index",
        *(
            pytest.param(words, marks=pytest.mark.nightly)
            for words in (
                "pip3 install -q --no-index",
                "python -m pip install -q --no-index",
                "python3 -m pip install -q --no-index --user",
                f"pip{PYTHON} install -q --no-index --upgrade",
            )
        ),
    ],
)
def test_packages_of_a_hook_are_for_the_trial_alone(
    node: TrialNode, tmp_path: Path, install: str
) -> None:
    files = {"startup-hook.sh": f"{install} {probe(tmp_path)}\n"}
    trial = node.run("1.1", files, entrypoint=f"{USE} && probe-script")
    assert exit_record(trial)["code"] == 0, log_text(trial)
    assert found_lines(log_text(trial))[0].startswith("found 1 /")
    assert "script /" in log_text(trial)


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["text", "list"])
def test_packages_of_an_entrypoint_are_for_the_trial_alone(
    node: TrialNode, tmp_path: Path, form: str
) -> None:
    line = f"pip install -q --no-index {probe(tmp_path)} && {USE}"
    entrypoint = line if form == "text" else ["bash", "-c", line]
    trial = node.run("1.1", {}, entrypoint=entrypoint)
    assert exit_record(trial)["code"] == 0, log_text(trial)


@pytest.mark.nightly
def test_trial_class_may_install_imports(node: TrialNode, tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", str(probe(tmp_path))]
    program = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, *{install[1:]!r}], check=True)\n"
        f"{PROBE}\nsys.exit(0)\n"
    )
    trial = node.run("1.1", {"model_def.py": program})
    assert exit_record(trial)["code"] == 0, log_text(trial)


@pytest.mark.nightly
def test_later_runs_reuse_packages_of_the_hook(node: TrialNode, tmp_path: Path) -> None:
    path = probe(tmp_path)
    hook = (
        f"python3 -c 'import {NAME}' 2>/dev/null && echo kept\npip install -q --no-index {path}\n"
    )
    first = node.run("1.1", {"startup-hook.sh": hook}, entrypoint=f"{USE} && probe-script")
    second = node.run("1.2", {"startup-hook.sh": hook}, entrypoint=f"{USE} && probe-script")
    assert "kept" not in log_text(first)
    assert "kept" in log_text(second), log_text(second)
    assert "installed by an earlier run: pip install -q --no-index " in log_text(second)
    assert exit_record(second)["code"] == 0, log_text(second)


@pytest.mark.nightly
def test_second_experiment_installs_packages_again(node: TrialNode, tmp_path: Path) -> None:
    files = {
        "startup-hook.sh": f"python3 -c 'import {NAME}' && echo kept\n"
        f"pip install -q --no-index {probe(tmp_path)}\n".replace("&&", "2>/dev/null &&")
    }
    node.run("1.1", files, entrypoint=USE)
    other = node.run("2.1", files, entrypoint=USE, experiment_id=2, trial_id=2)
    assert "kept" not in log_text(other)
    assert exit_record(other)["code"] == 0, log_text(other)


@pytest.mark.nightly
def test_failed_hook_keeps_no_packages(node: TrialNode, tmp_path: Path) -> None:
    hook = f"pip install -q --no-index {probe(tmp_path)}\nexit 3\n"
    trial = node.run("1.1", {"startup-hook.sh": hook}, entrypoint="true")
    assert "startup-hook.sh failed with exit code 3" in exit_record(trial)["message"]
    assert not list((node.folder / "environments").glob("experiments/*/*"))


@pytest.mark.nightly
def test_packages_installed_after_the_hook_are_not_kept(node: TrialNode, tmp_path: Path) -> None:
    hook = f"pip install -q --no-index {probe(tmp_path)}\n"
    newer = probe(tmp_path, "2")
    files = {"startup-hook.sh": hook}
    first = node.run("1.1", files, entrypoint=f"pip install -q --no-index {newer} && {USE}")
    second = node.run("1.2", files, entrypoint=USE)
    assert found_lines(log_text(first))[0].startswith("found 2 ")
    assert found_lines(log_text(second))[0].startswith("found 1 ")


def test_trial_cannot_remove_packages_of_the_agent(node: TrialNode) -> None:
    # `packaging` is a dependency of the tests, and so is always installed.
    line = "pip uninstall -q -y packaging; python3 -c 'import packaging; print(packaging.__file__)'"
    trial = node.run("1.1", {}, entrypoint=line)
    assert exit_record(trial)["code"] == 0, log_text(trial)
    assert importlib.util.find_spec("packaging") is not None


@pytest.mark.nightly
def test_upgrade_hides_the_agents_version(node: TrialNode, tmp_path: Path) -> None:
    name, content = wheel("packaging", "999")
    (tmp_path / name).write_bytes(content)
    use = "python3 -c 'import packaging; print(packaging.VERSION)'"
    line = f"pip install -q --no-index --upgrade {tmp_path / name}; {use}"
    trial = node.run("1.1", {}, entrypoint=line)
    assert "\n999\n" in log_text(trial), log_text(trial)


@pytest.mark.nightly
def test_editable_package_is_not_kept_for_later_runs(node: TrialNode, tmp_path: Path) -> None:
    files = {
        "pyproject.toml": "[build-system]\nrequires = ['setuptools']\n"
        "build-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'edited'\nversion = '1'\n[tool.setuptools]\npy-modules = ['edited']\n",
        "edited.py": "",
        "startup-hook.sh": "pip install -q --no-index --no-build-isolation -e .\n"
        f"pip install -q --no-index {probe(tmp_path)}\n",
    }
    use = f"cd / && python3 -c 'import edited; print(edited.__file__)' && {USE}"
    first = node.run("1.1", files, entrypoint=use)
    assert exit_record(first)["code"] == 0, log_text(first)
    kept = [path.name for path in (node.folder / "environments/experiments").glob("1/*/lib/*/*/*")]
    assert f"{NAME}.py" in kept
    assert not [name for name in kept if "edit" in name]
    second = node.run("1.2", files, entrypoint=use)
    assert exit_record(second)["code"] == 0, log_text(second)
    assert str(second.directory.code) in log_text(second)


@pytest.mark.nightly
def test_two_concurrent_runs_share_a_layer(node: TrialNode, tmp_path: Path) -> None:
    files = {"startup-hook.sh": f"pip install -q --no-index {probe(tmp_path)}\n"}
    trials = [node.begin(f"{n}.1", files, entrypoint=USE, trial_id=n) for n in (1, 2)]
    for trial in trials:
        node.watch(trial)
        assert exit_record(trial)["code"] == 0, log_text(trial)
    folder = node.folder / "environments/experiments/1"
    assert len([path for path in folder.iterdir() if path.is_symlink()]) == 1
    assert len([path for path in folder.iterdir() if not path.is_symlink()]) == 1


def test_virtual_environment_of_the_hook_precedes_the_agents(node: TrialNode) -> None:
    hook = "python3 -m venv --without-pip own\n. own/bin/activate\n"
    trial = node.run("1.1", {"startup-hook.sh": hook}, entrypoint="command -v python3")
    assert f"{os.path.realpath(trial.directory.code)}/own/bin/python3" in log_text(trial)


def packages_of(path: Path, installer: str = "pip") -> dict[str, object]:
    """Return declared packages in the cluster's form: a wheel from a folder."""
    return {"installer": installer, "packages": ["--no-index", str(path)], "file": ""}


def test_declared_packages_are_installed_once(node: TrialNode, tmp_path: Path) -> None:
    path = probe(tmp_path)
    files = {"startup-hook.sh": f"{USE}\n"}
    first = node.run("1.1", files, entrypoint="probe-script", packages=packages_of(path))
    assert exit_record(first)["code"] == 0, log_text(first)
    path.unlink()
    second = node.run("1.2", files, entrypoint="probe-script", packages=packages_of(path))
    assert exit_record(second)["code"] == 0, log_text(second)
    assert "environment.pip: packages found on this machine" in log_text(second)


@pytest.mark.nightly
def test_trial_class_imports_declared_packages(node: TrialNode, tmp_path: Path) -> None:
    program = f"import sys\n{PROBE}\nsys.exit(0)\n"
    trial = node.run("1.1", {"model_def.py": program}, packages=packages_of(probe(tmp_path)))
    assert exit_record(trial)["code"] == 0, log_text(trial)


@pytest.mark.nightly
def test_packages_are_declared_by_a_file_saved_on_windows(node: TrialNode, tmp_path: Path) -> None:
    files = {"needs.txt": f"\ufeff--no-index\r\n{probe(tmp_path)}\r\n"}
    packages = {"installer": "pip", "packages": None, "file": "needs.txt"}
    trial = node.run("1.1", files, entrypoint=USE, packages=packages)
    assert exit_record(trial)["code"] == 0, log_text(trial)


def test_missing_packages_fail_the_trial(node: TrialNode, tmp_path: Path) -> None:
    trial = node.run("1.1", {}, entrypoint="true", packages=packages_of(tmp_path / "gone.whl"))
    record = exit_record(trial)
    assert record["message"].startswith("the installation of declared packages")
    assert "environment.pip: pip ended with exit code 1" in record["message"]
    assert not list((node.folder / "environments/owners").glob("*/packages/build-*"))


def test_missing_requirements_file_is_named(node: TrialNode) -> None:
    packages = {"installer": "pip", "packages": None, "file": "needs.txt"}
    trial = node.run("1.1", {}, entrypoint="true", packages=packages)
    assert "the model directory has no file needs.txt" in exit_record(trial)["message"]


@pytest.mark.nightly
def test_concurrent_runs_install_declared_packages_once(node: TrialNode, tmp_path: Path) -> None:
    packages = packages_of(probe(tmp_path))
    trials = [
        node.begin(f"{n}.1", {}, entrypoint=USE, trial_id=n, packages=packages) for n in (1, 2)
    ]
    for trial in trials:
        node.watch(trial)
        assert exit_record(trial)["code"] == 0, log_text(trial)
    logs = "".join(map(log_text, trials))
    assert logs.count("packages installed in") == logs.count("found on this machine") == 1, logs


def test_owners_share_no_packages(node: TrialNode, tmp_path: Path) -> None:
    packages = packages_of(probe(tmp_path))
    for number, owner in enumerate(("ada", "bob"), 1):
        trial = node.run(f"{number}.1", {}, entrypoint=USE, packages=packages, owner=owner)
        assert "packages installed in" in log_text(trial), log_text(trial)
