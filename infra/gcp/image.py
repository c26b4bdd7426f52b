"""The images of the functions, which Cloud Build builds during a deployment (decision 0059).

The deployer therefore needs no container engine. An image's tag is the digest of the sources, and
the repository never moves a tag to another image. A deployment without changes builds nothing, and
a repeated deployment continues after an interruption.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pulumi
from pulumi_gcp import artifactregistry, storage

from infra.gcp.accounts import Accounts
from infra.gcp.google_api import GoogleApi, GoogleError, RestApi, read_or_none
from infra.gcp.names import Names
from infra.gcp.policies import SOURCES
from infra.gcp.scope import Scope

TAG_CHARACTERS: Final = 32
# Rollbacks may need several earlier images.
IMAGES_KEPT: Final = 10
BUILD_SECONDS_MAX: Final = 1200
LOOK_SECONDS: Final = 5.0
BAD_REQUEST: Final = 400
SERVER_ERROR: Final = 500
BUILDER: Final = "gcr.io/cloud-builders/docker"
_ENDED: Final = frozenset(
    {"SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED"}
)


class BuildFailed(Exception):
    """An image could not be built; the message is for users."""


@dataclass(frozen=True)
class Build:
    """The build of an image."""

    names: Names
    """The names of the stack's resources."""
    package: str
    """The image's name in the repository."""
    source: str
    """The key of the sources' archive in the bucket of objects."""
    tag: str
    """The start of the archive's SHA-256 digest."""

    @property
    def image(self) -> str:
        """The image's full name with host, repository and tag."""
        return f"{self.names.repository}/{self.package}:{self.tag}"


ImageBuilder = Callable[[Build], None]
"""Function that builds an image unless the repository has it. Raises BuildFailed."""


def make_image(
    scope: Scope, accounts: Accounts, bucket: Any, builder: ImageBuilder, kind: str, archive: str
) -> Any:
    """Upload the archive to the bucket and build the image; return the image's full name.

    `kind`, which is `functions` or `suggest`, becomes the image's name in the repository. The
    returned output resolves after `builder` has built the image with the service account `build` of
    `accounts`, and fails with the errors of `builder`. A preview builds nothing. Raise OSError,
    also in a preview, if the archive cannot be read.
    """
    digest = hashlib.sha256(Path(archive).read_bytes()).hexdigest()
    build = Build(scope.names, kind, f"{SOURCES}{digest}.tar.gz", digest[:TAG_CHARACTERS])
    source = storage.BucketObject(
        f"{kind}-sources",
        bucket=bucket.name,
        name=build.source,
        source=pulumi.FileAsset(archive),
        content_type="application/gzip",
        opts=scope.options(),
    )
    given = [
        resource.id
        for resource in accounts.given["build"]
        if isinstance(resource, pulumi.CustomResource)
    ]

    async def build_image(made: object) -> str:
        if not pulumi.runtime.is_dry_run():
            await asyncio.to_thread(builder, build)
        return build.image

    return pulumi.Output.all(source.id, accounts.email("build"), *given).apply(build_image)


def make_repository(scope: Scope) -> Any:
    """Create and return the repository of the functions' images.

    The repository keeps the newest IMAGES_KEPT images, and deletes others after 30 days.
    """
    settings = scope.settings
    return artifactregistry.Repository(
        "images",
        project=settings.project,
        location=settings.region,
        repository_id=scope.names.cluster,
        description=f"{scope.names.cluster}: images of the functions",
        format="DOCKER",
        docker_config={"immutable_tags": True},
        cleanup_policy_dry_run=False,
        cleanup_policies=[
            {
                "id": "keep-newest",
                "action": "KEEP",
                "most_recent_versions": {"keep_count": IMAGES_KEPT},
            },
            {"id": "delete-others", "action": "DELETE", "condition": {"older_than": "2592000s"}},
        ],
        kms_key_name=settings.kms_key or None,
        labels=scope.labels,
        opts=scope.options(),
    )


def build_image(
    build: Build,
    api: GoogleApi | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Build an image with Cloud Build and wait for the end, unless the repository has the image.

    Log the address of the build's log. Raise BuildFailed if the build fails, takes longer than
    BUILD_SECONDS_MAX or Google refuses. A failed build is fine if another deployment has pushed the
    image meanwhile.
    """
    api = api or RestApi(build.names.project)
    try:
        if _has_image(api, build):
            return
        url, begun = _begin(api, build)
        pulumi.log.info(f"Cloud Build makes the image {build.package}: {begun.get('logUrl', '')}")
        found = _wait(api, f"{url}/{begun['id']}", sleep)
        # A failed build is fine if a concurrent deployment has pushed the tag first.
        is_there = found["status"] == "SUCCESS" or _has_image(api, build)
    except GoogleError as error:
        raise BuildFailed(
            f"the image {build.package} was not built: {error}; detcloud:image and "
            "detcloud:suggestImage take images that were built elsewhere"
        ) from None
    if not is_there:
        detail = found.get("failureInfo", {}).get("detail") or found.get("statusDetail", "")
        raise BuildFailed(
            f"the image {build.package} was not built: {found['status']} {detail}; its log is at "
            f"{found.get('logUrl', '')}"
        )


def _begin(api: GoogleApi, build: Build) -> tuple[str, Mapping[str, Any]]:
    """Start a build; return the URL of builds and Cloud Build's description of the build.

    Build in the stack's region, or in the location `global` if the project may not build there.
    Raise GoogleError if Google refuses.
    """
    project, request = build.names.project, build_request(build)
    for place in (build.names.region, "global"):
        url = f"https://cloudbuild.googleapis.com/v1/projects/{project}/locations/{place}/builds"
        try:
            return url, api.call("POST", url, request)["metadata"]["build"]
        except GoogleError as error:
            if place == "global" or not _is_refused_in_region(error):
                raise
    raise AssertionError("the last place has returned or raised")


def _is_refused_in_region(error: GoogleError) -> bool:
    """Return whether the error says that the project may not build in this region."""
    return error.status == BAD_REQUEST and "builds in this region" in str(error)


def _wait(api: GoogleApi, url: str, sleep: Callable[[float], None]) -> Mapping[str, Any]:
    """Return the build at `url` after it has ended, or the last known state after the time limit.

    Ignore unanswered polls and server errors. Raise GoogleError for other refusals.
    """
    found: Mapping[str, Any] = {"status": "UNKNOWN"}
    for _ in range(int((BUILD_SECONDS_MAX + 60) / LOOK_SECONDS)):
        try:
            found = api.call("GET", url)
        except GoogleError as error:
            # A failed poll says nothing about the build.
            if 0 < error.status < SERVER_ERROR:
                raise
        if found["status"] in _ENDED:
            break
        sleep(LOOK_SECONDS)
    return found


def build_request(build: Build) -> dict[str, Any]:
    """Return the body of the request that starts a build with Cloud Build."""
    names = build.names
    account = f"projects/{names.project}/serviceAccounts/{names.email('build')}"
    return {
        "source": {"storageSource": {"bucket": names.objects, "object": build.source}},
        "steps": [{"name": BUILDER, "args": ["build", "--tag", build.image, "."]}],
        "images": [build.image],
        "serviceAccount": account,
        "timeout": f"{BUILD_SECONDS_MAX}s",
        "options": {"logging": "CLOUD_LOGGING_ONLY"},
        "tags": [names.cluster],
    }


def _has_image(api: GoogleApi, build: Build) -> bool:
    """Return whether the repository has the image with the build's tag. Raise GoogleError."""
    names = build.names
    repository = f"projects/{names.project}/locations/{names.region}/repositories/{names.cluster}"
    url = f"https://artifactregistry.googleapis.com/v1/{repository}/packages/{build.package}/tags"
    return read_or_none(api, f"{url}/{build.tag}") is not None
