"""The template and the provisioning script of the machine image."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from control_plane.config.images import DEFAULT_IMAGES
from provisioner.clouds.aws.launch_request import IMAGE_DEFAULT
from tests.emulators.server import require_program

IMAGES = Path(__file__).parents[3] / "images"
TEMPLATE = IMAGES / "ami/detcloud.pkr.hcl"
PROVISION = IMAGES / "ami/provision.sh"
INSTALL = IMAGES / "boot/install.sh"
# Parts of the template that Debian's version of Packer does not know: plugins and two settings.
NEWER = (
    r"^packer \{\n.*?^\}\n",
    r"^  metadata_options \{\n.*?^  \}\n",
    r"^  imds_support .*?\n",
)


@pytest.mark.parametrize("gpu", ["true", "false"])
def test_packer_accepts_the_template(tmp_path: Path, gpu: str) -> None:
    packer = require_program("packer", remedy="`apt-get install packer` installs Debian's")
    text = TEMPLATE.read_text()
    for newer in NEWER:
        text, count = re.subn(newer, "", text, flags=re.MULTILINE | re.DOTALL)
        assert count == 1, newer
    folder = tmp_path / "images/ami"
    folder.mkdir(parents=True)
    (tmp_path / "images/boot").symlink_to(IMAGES / "boot")
    (folder / "provision.sh").symlink_to(PROVISION)
    (folder / TEMPLATE.name).write_text(text)
    variables = ["-var", "region=eu-central-1", "-var", f"gpu={gpu}", "-var", 'pull=["a", "b"]']
    done = subprocess.run(
        [packer, "validate", *variables, folder / TEMPLATE.name],
        env={**os.environ, "CHECKPOINT_DISABLE": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_base_is_the_default_image_of_instances() -> None:
    (named,) = re.findall(r'"(Deep Learning[^"]*)"', TEMPLATE.read_text())
    words = "-".join(re.findall(r"[a-z0-9.]+", named.lower()))
    kind = IMAGE_DEFAULT.split("/")[-3]
    assert words == f"deep-learning-{kind.replace('-ubuntu', '-ami-ubuntu')}"


def test_image_is_encrypted_and_metadata_need_a_token() -> None:
    settings = dict(re.findall(r"^ +([a-z_]+) += (.+)$", TEMPLATE.read_text(), re.MULTILINE))
    wanted = {
        "encrypt_boot": "true",
        "encrypted": "true",
        "http_tokens": '"required"',
        "http_put_response_hop_limit": "1",
        "imds_support": '"v2.0"',
        "ssh_clear_authorized_keys": "true",
    }
    assert {name: settings.get(name) for name in wanted} == wanted


def test_template_has_no_secret_variable() -> None:
    names = re.findall(r'^variable "(\w+)"', TEMPLATE.read_text(), re.MULTILINE)
    assert names == ["region", "gpu", "pull", "subnet_id"]


def test_image_contains_the_default_image_of_trials(tmp_path: Path) -> None:
    """Run the loop of pulls with a program in place of docker."""
    text = PROVISION.read_text()
    pulls = text[text.index("trial=") : text.index("# The image must contain no keys")]
    program = tmp_path / "docker"
    program.write_text('#!/bin/bash\necho "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euc", pulls],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "PULL": "a b"},
        capture_output=True,
        text=True,
        check=True,
    )
    pulled = [line.removeprefix("pull --quiet ") for line in done.stdout.splitlines()]
    assert pulled == [*{DEFAULT_IMAGES.cpu, DEFAULT_IMAGES.cuda}, "a", "b"]


@pytest.mark.parametrize("script", [PROVISION, *sorted(IMAGES.glob("boot/*.sh"))])
def test_scripts_are_valid_bash(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("present", "installed"),
    [
        (["docker", "iptables", "python3"], ""),
        (["docker", "iptables", "python3.11"], ""),
        (["iptables", "python3"], "docker.io"),
        ([], "docker.io iptables python3.11"),
    ],
)
def test_installs_only_missing_programs(tmp_path: Path, present: list[str], installed: str) -> None:
    log = tmp_path / "log"
    programs = {name: "exit 0" for name in present} | {"apt-get": f'echo "$*" >> {log}'}
    # Without python3 in `present` the machine has a python3 that is too old.
    for name, does in ({"python3": "exit 1"} | programs).items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    script = f'. {INSTALL}; echo "$python"'
    done = subprocess.run(
        ["/bin/bash", "-c", script], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    python = "python3" if "python3" in present else "python3.11"
    assert (done.returncode, done.stdout) == (0, f"{python}\n"), done.stderr
    calls = log.read_text().splitlines() if log.exists() else []
    assert [line.partition("recommends ")[2] for line in calls[1:]] == [installed] * bool(installed)
    assert all("Lock::Timeout" in line for line in calls)
