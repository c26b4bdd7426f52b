"""`python -m infra.function_image FOLDER`: the folder that an image of functions is built in, by
`docker build FOLDER`, or by a buildpack with `pack build IMAGE --path FOLDER`.

It holds what functions import, and the packages that they need in the versions that are installed
here, those with which this version was tested.
"""

import argparse
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from infra.sources import REPOSITORY, copy_sources, extra_packages

# The images, and the extras whose packages are in each.
EXTRAS = {"functions": ("functions-gcp",), "suggest": ("functions-gcp", "optuna")}
BUILD_FILES = REPOSITORY / "images" / "functions"
# A package and extras of it; and the extra of another one that asks for it.
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?: *\[([^]]*)\])?(.*)")
_OF_EXTRA = re.compile(r"extra *== *['\"]([^'\"]+)['\"]")


def fill_build_folder(folder: Path, kind: str = "functions") -> None:
    """Fill a folder, which must not exist, for an image of a kind, see EXTRAS."""
    shutil.copytree(BUILD_FILES, folder)
    lines = pinned_packages(extra_packages(*EXTRAS[kind]))
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))
    copy_sources(folder)


def pinned_packages(requirements: list[str]) -> list[str]:
    """Return the packages that the requirements ask for, and those which these need, as they are
    installed, in the order of their names. Raises PackageNotFoundError for one that is asked for
    and is not here.
    """
    left = [_parse_requirement(line) for line in requirements]
    wanted = {name for name, _ in left}
    seen, versions = set[tuple[str, str]](), dict[str, str]()
    while left:
        name, extras = left.pop()
        plain = re.sub(r"[-_.]+", "-", name).lower()
        new = {extra for extra in ("", *extras) if (plain, extra) not in seen}
        seen |= {(plain, extra) for extra in new}
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in wanted:
                raise
            # Of another system or Python.
            continue
        versions[plain] = installed.version
        for line in installed.requires or ():
            of_extra = _OF_EXTRA.search(line)
            if (of_extra[1] if of_extra else "") in new:
                left.append(_parse_requirement(line))
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def _parse_requirement(line: str) -> tuple[str, tuple[str, ...]]:
    """Return the package that a requirement asks for, and the extras of it."""
    found = _REQUIREMENT.match(line)
    if found is None:
        raise ValueError(f"{line!r} is not a requirement")
    return found[1], tuple(part.strip() for part in (found[2] or "").split(",") if part.strip())


def main() -> int:
    """Fill a folder."""
    parser = argparse.ArgumentParser(prog="python -m infra.function_image", description=__doc__)
    parser.add_argument("folder", type=Path, help="which does not exist")
    parser.add_argument("--kind", choices=sorted(EXTRAS), default="functions")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} exists")
    fill_build_folder(options.folder, options.kind)
    return 0


if __name__ == "__main__":
    sys.exit(main())
