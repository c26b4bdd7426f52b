"""Rules for Dockerfiles: reproducible, not as root, and without secrets."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from control_plane.config.images import BLACKWELL_IMAGE, DEFAULT_IMAGES
from tests.conftest import require

ROOT = Path(__file__).parents[3]
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))
HARNESS = ROOT / "harness"
# Parts of the mounted package that a trial may use or start.
OF_TRIALS = ("core", "launch", "pytorch", "storage")
TYPES = "TYPE_CHECKING"
SECRET = re.compile("pass|secret|token|key|credential", re.IGNORECASE)


def instructions(text: str) -> list[tuple[str, str]]:
    """Return (name, arguments) of each instruction, with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    parts = (line.strip().partition(" ") for line in whole.splitlines() if line.strip())
    return [(name.upper(), " ".join(rest.split())) for name, _, rest in parts]


def problems(text: str) -> list[str]:
    """Return the violations of the rules in a Dockerfile."""
    violations, arguments = [], dict[str, str]()
    steps = instructions(text)
    for name, rest in steps:
        if name == "ARG":
            argument, _, value = rest.partition("=")
            arguments[argument] = value
            violations += [] if value else [f"{argument} has no default"]
        if name in ("ARG", "ENV") and SECRET.search(rest.partition("=")[0]):
            violations.append(f"{rest} looks like a secret")
        if name == "FROM":
            base = arguments.get(rest.strip("${}"), "")
            if ":" not in base or base.endswith(":latest"):
                violations.append(f"FROM {rest} is not pinned by an argument with a version")
        if name == "ADD":
            violations.append("ADD may fetch what it likes: use COPY")
        for wanted in re.findall(r"pip install ([^&]*)", rest):
            packages = [word for word in wanted.split() if word.startswith(('"', "'"))]
            named = [word for word in packages if not word.startswith('"${')]
            violations += [f"{word} has no version" for word in named if "==" not in word]
    users = [rest for name, rest in steps if name == "USER"]
    if not users or users[-1].split(":")[0] in ("root", "0"):
        violations.append("it runs as root")
    return violations


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_dockerfile_is_pinned_and_does_not_run_as_root(path: Path) -> None:
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
def test_each_rule_can_be_broken(old: str, new: str, problem: str) -> None:
    assert problems(GOOD) == []
    assert old in GOOD
    assert problem in " ".join(problems(GOOD.replace(old, new)))


def test_trial_image_has_the_tested_version_of_torch() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    version = re.search(r"^torch==(.+)$", constraints, re.MULTILINE)
    assert version
    assert f"ARG TORCH={version[1]}\n" in (ROOT / "images/trial/Dockerfile").read_text()


def test_trial_image_has_all_packages_that_the_harness_imports() -> None:
    require("boto3")
    text = (ROOT / "images/trial/Dockerfile").read_text()
    named = set(re.findall(r'"([a-z0-9-]+)==', text))
    needed = others_imported(OF_TRIALS)
    assert needed >= {"torch", "botocore"}, "or nothing was read"
    installed = named | {requirement for name in named for requirement in requirements_of(name)}
    assert not {package for package in needed if installed.isdisjoint(distributions_of(package))}


def others_imported(places: tuple[str, ...]) -> set[str]:
    """Return third-party packages that the files import, directly or through detcloud's modules."""
    left = [file for place in places for file in files_at(HARNESS / "detcloud" / place)]
    seen, others = set[Path](), set[str]()
    while left:
        file = left.pop()
        if file not in seen:
            seen.add(file)
            for module in imports(file):
                package = module.partition(".")[0]
                script = imported_script(file, package)
                if script is None:
                    left += files_of(module)
                    others.add(package)
                else:
                    left.append(script)
    return others - sys.stdlib_module_names - {"detcloud"}


def imports(file: Path) -> Iterator[str]:
    """Yield modules that the file imports at run time, and imported names that may be modules."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    checks = [
        item for item in nodes if isinstance(item, ast.If) and ast.unparse(item.test) == TYPES
    ]
    for node in set(nodes) - {item for check in checks for item in ast.walk(check)}:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_script(file: Path, module: str) -> Path | None:
    """Return the file in the same folder that a script imports by bare name, or None.

    An installed package with the same name takes precedence.
    """
    script = file.with_name(f"{module}.py")
    if not script.is_file() or module in sys.stdlib_module_names or distribution_names(module):
        return None
    return script


@cache
def distribution_names(package: str) -> list[str]:
    """Return the distributions that install a package, or an empty list."""
    return metadata.packages_distributions().get(package, [])


def files_at(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def files_of(module: str) -> list[Path]:
    """Return the file of a module of detcloud, or an empty list for third-party modules."""
    path = HARNESS / module.replace(".", "/")
    return [item for item in (path / "__init__.py", path.with_suffix(".py")) if item.is_file()]


def distributions_of(package: str) -> list[str]:
    """Return the distributions that install a package. `google` has many."""
    return metadata.packages_distributions().get(package, [package])


def requirements_of(distribution: str) -> list[str]:
    """Return the required distributions of a distribution, without its extras."""
    required = metadata.requires(distribution) or []
    return [re.split(r"[^\w-]", name)[0].lower() for name in required if "extra ==" not in name]


def test_readme_names_the_default_images() -> None:
    readme = (ROOT / "images/README.md").read_text()
    for image in (DEFAULT_IMAGES.cpu, DEFAULT_IMAGES.cuda, BLACKWELL_IMAGE):
        assert str(image) in readme


def test_no_document_names_an_image_in_a_namespace_of_others() -> None:
    files = [*ROOT.glob("images/**/*"), *ROOT.glob("docs/*.md"), *ROOT.glob("infra/*/*.yaml")]
    texts = {path: path.read_text() for path in files if path.is_file() and path.suffix != ".pyc"}
    named = {
        path: re.findall(r"(?<![\w./-])(?:docker\.io/)?detcloud/trial\b", text)
        for path, text in texts.items()
    }
    assert {path: names for path, names in named.items() if names} == {}
