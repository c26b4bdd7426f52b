"""The image of functions on Google Cloud, as far as it can be made without an engine: its packages
are installed as its Dockerfile says, and functions start of them and the sources alone.
"""

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from infra.function_image import EXTRAS, fill_build_folder, pinned_packages
from infra.sources import extra_packages
from tests.emulators.cloud_run import run_function
from tests.emulators.server import free_port
from tests.patience import ANSWER_SECONDS_MAX

# Of Python's own image, which is 45 MB to pull, nothing; Cloud Run has no limit, and takes the
# longer to start the larger an image is.
BYTES_MAX = 80_000_000
ENVIRONMENT = {
    **{f"DETCLOUD_{it}": f"vision-{it.lower()}" for it in ("DATABASE", "OBJECTS", "CHECKPOINTS")},
    "DETCLOUD_CLUSTER": "detcloud-vision",
    "DETCLOUD_PROJECT": "vision",
    "DETCLOUD_HOST": "127.0.0.1",
    "DETCLOUD_REGION": "us-central1",
    "DETCLOUD_NETWORK": "{}",
    "DETCLOUD_INSTANCE_ACCOUNT": "instances@vision.iam.gserviceaccount.com",
    "DETCLOUD_STORAGE_ACCOUNT": "storage@vision.iam.gserviceaccount.com",
    "DETCLOUD_ADMIN_SHA256": "0" * 64,
    "FIRESTORE_EMULATOR_HOST": "127.0.0.1:9",
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the code in the image, its packages with it."""
    folder = tmp_path_factory.mktemp("image") / "function"
    fill_build_folder(folder)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
    wanted = ["--only-binary=:all:", "--requirement", str(folder / "requirements.txt")]
    subprocess.run([*pip, "--target", str(folder), *wanted], check=True)
    return folder


@pytest.mark.nightly
def test_functions_start_of_what_is_in_the_image_alone(image: Path, tmp_path: Path) -> None:
    for name, path, status in (("api", "/api/v1/whoami", 401), ("tick", "/", 400)):
        url = f"http://127.0.0.1:{free_port()}"
        environment = {**ENVIRONMENT, "DETCLOUD_API_URL": url}
        # -S: without any package of this machine.
        with run_function(name, url, tmp_path, environment, (image,), ("-S", "-P")):
            # An event of another kind is refused before anything is read.
            headers = {"ce-type": "of another kind"}
            method = "GET" if name == "api" else "POST"
            request = urllib.request.Request(url + path, None, headers, method=method)
            with pytest.raises(urllib.error.HTTPError) as answer:
                urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX)
            answer.value.close()
            assert answer.value.code == status


@pytest.mark.nightly
def test_the_image_is_small(image: Path) -> None:
    assert sum(it.stat().st_size for it in image.rglob("*") if it.is_file()) <= BYTES_MAX
    assert not (image / "torch").exists()
    assert not (image / "lambdas" / "local").exists()


def test_the_model_of_suggestions_is_in_one_image_alone() -> None:
    named = {kind: pinned_packages(extra_packages(*extras)) for kind, extras in EXTRAS.items()}
    assert any(line.startswith("optuna==") for line in named["suggest"])
    assert set(named["functions"]) < set(named["suggest"])
    assert not any(line.startswith("optuna==") for line in named["functions"])
