"""The image of functions on Google Cloud, built without a registry.

Packages are installed as in the Dockerfile, and functions start from packages and sources alone.
"""

import shlex
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from infra.function_image import BUILD_FILES, EXTRAS, fill_build_folder, pinned_packages
from infra.sources import extra_packages
from tests.emulators.cloud_run import run_function
from tests.emulators.docker_engine import (
    DockerEngine,
    machine_mounts,
    root_folder,
    shell_files,
)
from tests.emulators.server import free_port, serving
from tests.patience import ANSWER_SECONDS_MAX, wait_until

# Excludes Python's own image of 45 MB. Cloud Run has no limit, but a larger image starts more
# slowly.
BYTES_MAX = 80_000_000
BASE, BUILT = "localhost/slim-functions:1", "localhost/functions:1"
# Replaces a program that the build calls, and records the call.
NOTES = b'#!/bin/sh\necho "${0##*/} $*" >> /steps\n'
ENVIRONMENT = {
    **{
        f"DETCLOUD_{name}": f"vision-{name.lower()}"
        for name in ("DATABASE", "OBJECTS", "CHECKPOINTS")
    },
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
    """Return the folder of the image's code and packages."""
    folder = tmp_path_factory.mktemp("image") / "function"
    fill_build_folder(folder)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
    wanted = ["--only-binary=:all:", "--requirement", str(folder / "requirements.txt")]
    subprocess.run([*pip, "--target", str(folder), *wanted], check=True)
    return folder


def status_of(url: str, method: str) -> int:
    """Send a function an event of an unknown kind; return the status of its refusal."""
    headers = {"ce-type": "of another kind"}
    request = urllib.request.Request(url, None, headers, method=method)
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX)
    answer.value.close()
    return answer.value.code


@pytest.mark.nightly
def test_functions_start_from_the_content_of_the_image_alone(image: Path, tmp_path: Path) -> None:
    for name, path, status in (("api", "/api/v1/whoami", 401), ("wake", "/", 400)):
        url = f"http://127.0.0.1:{free_port()}"
        environment = {**ENVIRONMENT, "DETCLOUD_API_URL": url}
        # -S: without any package of this machine.
        with run_function(name, url, tmp_path, environment, (image,), ("-S", "-P")):
            assert status_of(url + path, "GET" if name == "api" else "POST") == status


@pytest.mark.nightly
def test_functions_start_by_the_buildpacks_procfile(image: Path, tmp_path: Path) -> None:
    # The Procfile's command runs in the image's folder, from which modules are imported.
    kind, _, line = (image / "Procfile").read_text().strip().partition(": ")
    assert kind == "web"
    program, *options = shlex.split(line)
    assert program == "python3"
    url = f"http://127.0.0.1:{free_port()}"
    variables = {"DETCLOUD_FUNCTION": "wake", "PORT": url.rpartition(":")[2]}
    command = ["env", f"--chdir={image}", sys.executable, "-S", *options]
    with serving(command, url, tmp_path / "log", {**ENVIRONMENT, **variables}):
        assert status_of(url, "POST") == 400


@pytest.mark.nightly
def test_image_is_small(image: Path) -> None:
    assert sum(path.stat().st_size for path in image.rglob("*") if path.is_file()) <= BYTES_MAX
    assert not (image / "torch").exists()
    assert not (image / "local_cluster").exists()


def test_suggestion_model_is_in_a_single_image() -> None:
    named = {kind: pinned_packages(extra_packages(*extras)) for kind, extras in EXTRAS.items()}
    assert any(line.startswith("optuna==") for line in named["suggest"])
    assert set(named["functions"]) < set(named["suggest"])
    assert not any(line.startswith("optuna==") for line in named["functions"])


def test_dockerfile_and_buildpack_agree_on_python_and_program() -> None:
    lines = (BUILD_FILES / "Dockerfile").read_text().splitlines()
    base = next(
        line.removeprefix("ARG BASE=python:") for line in lines if line.startswith("ARG BASE=")
    )
    variables = tomllib.loads((BUILD_FILES / "project.toml").read_text())["build"]["env"]
    versions = {variable["name"]: variable["value"] for variable in variables}
    assert versions == {"GOOGLE_PYTHON_VERSION": f"{base.partition('-')[0]}.*"}
    module = "-m lambdas.gcp.serve"
    assert (BUILD_FILES / "Procfile").read_text() == f"web: python3 {module}\n"
    # The code is found by PYTHONPATH, not by the working directory.
    program = ", ".join(f'"{part}"' for part in ("python3", "-P", *module.split()))
    assert lines[-1] == f"ENTRYPOINT [{program}]"


@pytest.mark.nightly
def test_dockerfile_builds_an_image_that_serves(engine: DockerEngine, tmp_path: Path) -> None:
    """A real engine builds on a base without a network.

    Package installations are only recorded, and this machine's packages are mounted.
    """
    folder = tmp_path / "build"
    fill_build_folder(folder)
    programs = {f"opt/{text}": NOTES for text in ("pip", "python3")}
    content = root_folder({**shell_files(), **programs})
    engine.docker("import", "--change", "ENV PATH=/opt:/bin", "-", BASE, content=content)
    build = ["build", "--network", "host", "--build-arg", f"BASE={BASE}", "-t", BUILT]
    engine.docker(*build, str(folder))
    assert (engine.api.find_image(BUILT) or {})["Config"]["User"] == "1000:1000"
    show = ["run", "--rm", "--network", "host", "--entrypoint", "/bin/sh", BUILT, "-c"]
    steps = engine.docker(*show, "while read line; do echo $line; done < /steps").splitlines()
    assert [step.split()[0] for step in steps] == ["pip", "python3"]
    url = f"http://127.0.0.1:{free_port()}"
    given = {
        **ENVIRONMENT,
        "DETCLOUD_FUNCTION": "wake",
        "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin",
        "PORT": url.rpartition(":")[2],
    }
    options = [word for name, value in given.items() for word in ("--env", f"{name}={value}")]
    # An environment may use the packages of another environment.
    packages = [text for text in sys.path if text.endswith("site-packages")]
    folders = dict.fromkeys(
        [*(machine_mount["host_path"] for machine_mount in machine_mounts()), *packages]
    )
    options += [word for item in folders for word in ("--volume", f"{item}:{item}:ro")]
    name = engine.docker("run", "--detach", "--network", "host", *options, BUILT).strip()
    try:
        wait_until(lambda: _answers(url), 60, "a container that serves")
        assert status_of(url, "POST") == 400
    except AssertionError as error:
        raise AssertionError(f"{error}\n{engine.docker('logs', name)}") from error
    finally:
        engine.docker("rm", "--force", name)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX).close()
    except urllib.error.HTTPError as answer:
        answer.close()
    except OSError:
        return False
    return True
