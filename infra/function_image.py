"""`python -m infra.function_image FOLDER`: creates a folder for building an image of functions.

Build the image with `docker build FOLDER`, or with `pack build IMAGE --path FOLDER`. The folder
contains the sources of functions, and the list of their packages in the versions that are installed
here. This version of detcloud was tested with these package versions.
"""

import argparse
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from infra.sources import REPOSITORY, copy_sources, extra_packages

# The kinds of images, and the package extras that each kind includes.
EXTRAS = {"functions": ("functions-gcp",), "suggest": ("functions-gcp", "optuna")}
BUILD_FILES = REPOSITORY / "images" / "functions"
# A requirement: package, extras in brackets, rest. The second pattern finds the extra of the
# requiring package in the rest.
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?: *\[([^]]*)\])?(.*)")
_OF_EXTRA = re.compile(r"extra *== *['\"]([^'\"]+)['\"]")


def fill_build_folder(folder: Path, kind: str = "functions") -> None:
    """Create the folder with everything for building an image of functions.

    `kind` is `functions`, or `suggest` for the function that needs more packages. The folder gets
    the build files, the sources and `requirements.txt`. After an error, the folder stays with the
    files written so far. Raise FileExistsError if the folder exists, PackageNotFoundError if a
    required package is not installed, and KeyError for another kind.
    """
    shutil.copytree(BUILD_FILES, folder)
    lines = pinned_packages(extra_packages(*EXTRAS[kind]))
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))
    copy_sources(folder)


def pinned_packages(requirements: list[str]) -> list[str]:
    """Return sorted lines NAME==VERSION for the requirements and all dependencies.

    The versions are the installed ones. Raise PackageNotFoundError if a requirement is not
    installed. Dependencies that are not installed are skipped, and so are dependencies of extras
    that nobody requires.
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
            # The dependency is for another operating system or version of Python.
            continue
        versions[plain] = installed.version
        for line in installed.requires or ():
            of_extra = _OF_EXTRA.search(line)
            if (of_extra[1] if of_extra else "") in new:
                left.append(_parse_requirement(line))
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def _parse_requirement(line: str) -> tuple[str, tuple[str, ...]]:
    """Return the package's name and the package's required extras.

    Raise ValueError if the line is no requirement.
    """
    found = _REQUIREMENT.match(line)
    if found is None:
        raise ValueError(f"{line!r} is not a requirement")
    return found[1], tuple(part.strip() for part in (found[2] or "").split(",") if part.strip())


def main() -> int:
    """Create the folder named on the command line, and return 0.

    Exit with status 2 and a usage error if the folder exists. Raise PackageNotFoundError if a
    required package is not installed.
    """
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
