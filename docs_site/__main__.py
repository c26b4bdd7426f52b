"""The commands of the documentation site: `build`, and `publish FOLDER VERSION`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from docs_site.page_checks import check_outlines, check_site
from docs_site.publication import PublicationRefused, publish
from docs_site.sources import REPOSITORY
from docs_site.stage import CONFIGURATION, stage
from docs_site.word_checks import check_words

BUILD = REPOSITORY / "build"
SITE = BUILD / "site"


def main() -> int:
    arguments = read_arguments()
    if arguments.command == "publish":
        return publish_site(arguments.folder, arguments.version)
    return build_site(arguments.url)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m docs_site", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build and check the site under build/site")
    build.add_argument("--url", help="the address of the published site, for the site map")
    published = commands.add_parser("publish", help="copy build/site into a folder of versions")
    published.add_argument("folder", type=Path, help="the folder that a web server serves")
    published.add_argument("version", help="the version, such as 0.2.0, or dev")
    return parser.parse_args()


def build_site(url: str | None) -> int:
    """Build and check the site; print all problems. Return the exit code."""
    problems = [*stage(BUILD, url), *check_words(REPOSITORY)]
    generator = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(
        [*generator, "--config-file", str(BUILD / CONFIGURATION.name)],
        cwd=REPOSITORY,
        check=False,
    )
    if done.returncode:
        problems.append(f"the generator ended with exit code {done.returncode}")
    else:
        problems += [*check_site(SITE), *check_outlines(SITE)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"{len(problems)} problems", file=sys.stderr)
        return 1
    print(f"built {SITE}; to read the site: python3 -m http.server --directory {SITE}")
    return 0


def publish_site(folder: Path, version: str) -> int:
    """Publish the built site and print the versions. Return the exit code."""
    try:
        versions = publish(SITE, folder, version)
    except PublicationRefused as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: {', '.join(known['version'] for known in versions)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
