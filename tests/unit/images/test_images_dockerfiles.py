"""The images build the same each time, as nobody in particular, and hold no secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from control_plane.config.images import OURS

ROOT = Path(__file__).parents[3]
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))
SECRET = re.compile("pass|secret|token|key|credential", re.IGNORECASE)


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction with its arguments, continued lines in one."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    found = (line.strip().partition(" ") for line in whole.splitlines() if line.strip())
    return [(name.upper(), " ".join(rest.split())) for name, _, rest in found]


def problems(text: str) -> list[str]:
    """What makes a Dockerfile irreproducible or unsafe."""
    found, arguments = [], dict[str, str]()
    steps = instructions(text)
    for name, rest in steps:
        if name == "ARG":
            argument, _, value = rest.partition("=")
            arguments[argument] = value
            found += [] if value else [f"{argument} has no default"]
        if name in ("ARG", "ENV") and SECRET.search(rest.partition("=")[0]):
            found.append(f"{rest} looks like a secret")
        if name == "FROM":
            base = arguments.get(rest.strip("${}"), "")
            if ":" not in base or base.endswith(":latest"):
                found.append(f"FROM {rest} is not pinned by an argument with a version")
        if name == "ADD":
            found.append("ADD may fetch what it likes: use COPY")
        for wanted in re.findall(r"pip install ([^&]*)", rest):
            packages = [word for word in wanted.split() if word.startswith(('"', "'"))]
            named = [word for word in packages if not word.startswith('"${')]
            found += [f"{word} has no version" for word in named if "==" not in word]
    users = [rest for name, rest in steps if name == "USER"]
    if not users or users[-1].split(":")[0] in ("root", "0"):
        found.append("it runs as root")
    return found


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_is_pinned_and_runs_as_nobody_in_particular(path: Path) -> None:
    assert problems(path.read_text()) == []


GOOD = 'ARG BASE=python:3.12\nFROM ${BASE}\nRUN pip install \\\n  "a==1"\nUSER 1000\n'


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("BASE=python:3.12", "BASE=python:latest", "FROM ${BASE} is not pinned"),
        ("${BASE}", "python:3.12", "FROM python:3.12 is not pinned"),
        ("ARG BASE=python:3.12", "ARG BASE", "BASE has no default"),
        ("USER 1000", "USER root", "it runs as root"),
        ("USER 1000", "", "it runs as root"),
        ("USER 1000", "ADD https://x /x\nUSER 1000", "ADD may fetch"),
        ("USER 1000", "ARG TOKEN=x\nUSER 1000", "TOKEN=x looks like a secret"),
        ('"a==1"', '"a"', '"a" has no version'),
    ],
)
def test_each_of_the_rules_can_be_broken(old: str, new: str, problem: str) -> None:
    assert problems(GOOD) == []
    assert old in GOOD
    assert problem in " ".join(problems(GOOD.replace(old, new)))


def test_the_versions_are_those_that_the_tests_run_with() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    version = re.search(r"^torch==(.+)$", constraints, re.MULTILINE)
    assert version
    assert f"ARG TORCH={version[1]}\n" in DOCKERFILES[0].read_text()


def test_the_commands_build_the_images_that_trials_run_in() -> None:
    readme = (ROOT / "images/README.md").read_text()
    for image in (OURS.cpu, OURS.cuda):
        assert f"docker build -t {image} " in readme
