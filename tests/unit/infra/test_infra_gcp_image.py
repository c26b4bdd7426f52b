"""The functions' image: the source archive and the build by Cloud Build."""

import tarfile
from pathlib import Path
from typing import Any

import pytest

from infra.gcp import bundle
from infra.gcp.google_api import GoogleError
from infra.gcp.image import Build, BuildFailed, build_image
from infra.gcp.names import Names
from tests.unit.infra.google_answers import Answer, Answers

NAMES = Names("vision", "acme-ml", "123456789012", "us-central1")
BUILD = Build(NAMES, "functions", "function-sources/abc.tar.gz", "abc")
IMAGE = "us-central1-docker.pkg.dev/acme-ml/detcloud-vision/functions:abc"
BUILDS = "projects/acme-ml/locations/us-central1/builds"
BEGUN = {"metadata": {"build": {"id": "b1", "logUrl": "https://log"}}}


def cloud_build(*statuses: str, **last: Any) -> Answers:
    """A project without the image, in which a build has these statuses in order."""
    left = list(statuses)

    def look(body: object) -> dict[str, Any]:
        status = left.pop(0)
        return {"status": status, "logUrl": "https://log", **(last if not left else {})}

    table: dict[tuple[str, str], Answer] = {
        ("POST", BUILDS): BEGUN,
        ("GET", f"{BUILDS}/b1"): look,
    }
    return Answers(table)


def test_image_build_uses_the_build_account_and_is_awaited() -> None:
    api, pauses = cloud_build("QUEUED", "WORKING", "SUCCESS"), list[float]()
    build_image(BUILD, api, pauses.append)
    [request] = [body for method, _, body in api.calls if method == "POST"]
    assert request == {
        "source": {
            "storageSource": {
                "bucket": "detcloud-vision-objects-123456789012",
                "object": "function-sources/abc.tar.gz",
            }
        },
        "steps": [{"name": "gcr.io/cloud-builders/docker", "args": ["build", "--tag", IMAGE, "."]}],
        "images": [IMAGE],
        "serviceAccount": (
            "projects/acme-ml/serviceAccounts/dc-vision-build@acme-ml.iam.gserviceaccount.com"
        ),
        "timeout": "1200s",
        "options": {"logging": "CLOUD_LOGGING_ONLY"},
        "tags": ["detcloud-vision"],
    }
    # No pause follows the last query.
    assert pauses == [5.0, 5.0]


def test_existing_image_is_not_built_again() -> None:
    tag = "repositories/detcloud-vision/packages/functions/tags/abc"
    api = Answers({("GET", tag): {"version": "sha256:1"}})
    build_image(BUILD, api)
    assert api.urls_of("POST") == []


def test_failed_build_names_the_reason_and_the_log() -> None:
    api = cloud_build("FAILURE", failureInfo={"detail": "step 0 failed"})
    with pytest.raises(BuildFailed, match=r"FAILURE step 0 failed; its log is at https://log"):
        build_image(BUILD, api)


def test_refused_build_is_an_error() -> None:
    api = Answers({("POST", BUILDS): GoogleError(403, "Cloud Build API is disabled")})
    with pytest.raises(BuildFailed, match="Cloud Build API is disabled"):
        build_image(BUILD, api)


def test_build_moves_to_global_if_the_region_refuses() -> None:
    api = cloud_build("SUCCESS")
    refusal = "due to quota restrictions, Cloud Build cannot run builds in this region"
    api.table["POST", BUILDS] = GoogleError(400, refusal)
    anywhere = "projects/acme-ml/locations/global/builds"
    api.table |= {("POST", anywhere): BEGUN, ("GET", f"{anywhere}/b1"): {"status": "SUCCESS"}}
    build_image(BUILD, api)
    assert [url.partition("/v1/")[2] for url in api.urls_of("POST")] == [BUILDS, anywhere]
    api.table["POST", anywhere] = GoogleError(400, refusal)
    with pytest.raises(BuildFailed, match="in this region; detcloud:image and"):
        build_image(BUILD, api)


def test_failed_status_query_does_not_end_the_wait() -> None:
    left: list[Any] = [GoogleError(0, "no answer"), GoogleError(503, "busy"), {"status": "SUCCESS"}]
    api = cloud_build()
    api.table["GET", f"{BUILDS}/b1"] = lambda body: left.pop(0)
    build_image(BUILD, api, lambda seconds: None)
    assert left == []


def test_image_of_a_concurrent_build_is_used() -> None:
    api = cloud_build("FAILURE")
    seen: list[Any] = [GoogleError(404, "none"), {"version": "sha256:1"}]
    tag = "repositories/detcloud-vision/packages/functions/tags/abc"
    api.table["GET", tag] = lambda body: seen.pop(0)
    build_image(BUILD, api)
    assert seen == []


def test_endless_build_is_abandoned() -> None:
    # (1200 + 60) / 5 = 252 queries.
    api = cloud_build(*["WORKING"] * 252)
    with pytest.raises(BuildFailed, match="WORKING"):
        build_image(BUILD, api, lambda seconds: None)


def test_source_archive_is_complete_and_reproducible(tmp_path: Path) -> None:
    archive = bundle.build_archive(tmp_path / "1", "suggest")
    assert archive.name == bundle.archive_name("suggest") == "suggest-image.tar.gz"
    assert archive.read_bytes() == bundle.build_archive(tmp_path / "2", "suggest").read_bytes()
    with tarfile.open(archive) as opened:
        names = set(opened.getnames())
    # The build step expects these files at the top.
    assert {"Dockerfile", "requirements.txt", "lambdas/gcp/serve.py"} <= names
    assert not any("__pycache__" in name for name in names)
