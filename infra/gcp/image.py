"""The images of the functions, which Cloud Build makes of their sources while the stack is made
(decision 0059): no container engine is needed where somebody deploys.

An image is called by the digest of its sources, and the repository lets no name be given twice: so
a deployment without changes builds nothing, and one that broke off goes on when it is repeated.
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
# Of which a rollback can go back to one.
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
    """The image was not built; the message is for users."""


@dataclass(frozen=True)
class Build:
    """The build of an image: its sources, its name and its tag."""

    names: Names
    package: str
    source: str
    """The object of the sources, in the bucket of objects."""
    tag: str

    @property
    def image(self) -> str:
        """The image's whole name."""
        return f"{self.names.repository}/{self.package}:{self.tag}"


ImageBuilder = Callable[[Build], None]
"""Builds an image if there is none yet. Raises BuildFailed."""


def make_image(
    scope: Scope, accounts: Accounts, bucket: Any, builder: ImageBuilder, kind: str, archive: str
) -> Any:
    """Make the image of a kind of an archive; return its name, which is known when it can be
    pulled.
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
    """Make the repository of images, which keeps the newest."""
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
    """Build an image with Cloud Build if there is none yet, and wait for it. Raises BuildFailed."""
    api = api or RestApi(build.names.project)
    try:
        if _has_image(api, build):
            return
        url, begun = _begin(api, build)
        pulumi.log.info(f"Cloud Build makes the image {build.package}: {begun.get('logUrl', '')}")
        found = _wait(api, f"{url}/{begun['id']}", sleep)
        # Another deployment may have been first: a tag is given once.
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
    """Begin a build in the stack's region, or anywhere where the project may build nothing there;
    return the address of such builds, and the build.
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
    """Whether the project may only build in some regions, and not in this one."""
    return error.status == BAD_REQUEST and "builds in this region" in str(error)


def _wait(api: GoogleApi, url: str, sleep: Callable[[float], None]) -> Mapping[str, Any]:
    """Return a build when it has ended, or as it is when there is no more waiting for it."""
    found: Mapping[str, Any] = {"status": "UNKNOWN"}
    for _ in range(int((BUILD_SECONDS_MAX + 60) / LOOK_SECONDS)):
        try:
            found = api.call("GET", url)
        except GoogleError as error:
            # A look that failed says nothing of the build.
            if 0 < error.status < SERVER_ERROR:
                raise
        if found["status"] in _ENDED:
            break
        sleep(LOOK_SECONDS)
    return found


def build_request(build: Build) -> dict[str, Any]:
    """Return the request of a build, as Cloud Build has it."""
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
    names = build.names
    repository = f"projects/{names.project}/locations/{names.region}/repositories/{names.cluster}"
    url = f"https://artifactregistry.googleapis.com/v1/{repository}/packages/{build.package}/tags"
    return read_or_none(api, f"{url}/{build.tag}") is not None
