"""The file with a company's authorities: variables, errors and the file for other programs."""

import os
import ssl
from pathlib import Path

import pytest

from detcloud.shared.certificates import (
    BUNDLE_VARIABLES,
    authority_file,
    complete_environment,
    tls_context,
)
from detcloud.shared.errors import InvalidValue
from tests.emulators.company_authority import create_authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_authority(tmp_path_factory.mktemp("company") / "a").certificate


def test_no_variable_leaves_python_its_default() -> None:
    assert tls_context({}) is None
    assert tls_context({"DETCLOUD_CA_FILE": " "}) is None
    assert tls_context({"DET_MASTER_CERT_FILE": "noverify"}) is None


def test_own_variable_precedes_determineds(authority: Path) -> None:
    both = {"DETCLOUD_CA_FILE": str(authority), "DET_MASTER_CERT_FILE": "/other"}
    assert authority_file(both) == ("DETCLOUD_CA_FILE", str(authority))
    own = {"DET_MASTER_CERT_FILE": str(authority)}
    assert authority_file(own) == ("DET_MASTER_CERT_FILE", str(authority))


def test_context_is_cached_until_the_file_changes(authority: Path) -> None:
    environment = {"DETCLOUD_CA_FILE": str(authority)}
    first = tls_context(environment)
    assert first is not None
    assert first.verify_mode == ssl.CERT_REQUIRED
    assert tls_context(environment) is first
    os.utime(authority, ns=(1, 1))
    assert tls_context(environment) is not first


@pytest.mark.parametrize(
    ("content", "fault"),
    [(None, "cannot be read: No such file or directory"), ("text", "contains no valid certif")],
)
def test_unusable_file_names_variable_path_and_remedy(
    tmp_path: Path, content: str | None, fault: str
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidValue) as error:
        tls_context({"DETCLOUD_CA_FILE": str(path)})
    text = str(error.value)
    assert text.startswith(f"DETCLOUD_CA_FILE names {path}, which {fault}")
    assert text.endswith("certificates in PEM form, or unset the variable")


def test_other_programs_get_all_authorities_unless_they_have_a_file(
    authority: Path, tmp_path: Path
) -> None:
    system = tmp_path / "system.pem"
    system.write_text("system's\n")
    environment = {
        "DETCLOUD_CA_FILE": str(authority),
        "SSL_CERT_FILE": str(system),
        "AWS_CA_BUNDLE": "/own",
    }
    bundle = complete_environment(environment, tmp_path / "work")
    assert bundle is not None
    assert bundle.read_text() == f"system's\n\n{authority.read_text()}"
    # Trials of other users read the file.
    assert bundle.stat().st_mode & 0o777 == 0o444
    changed = {name: environment[name] for name in BUNDLE_VARIABLES}
    kept = {"SSL_CERT_FILE": str(system), "AWS_CA_BUNDLE": "/own"}
    assert changed == {**dict.fromkeys(BUNDLE_VARIABLES, str(bundle)), **kept}


def test_variables_stay_without_authority_and_proxy(tmp_path: Path) -> None:
    environment = {"PATH": "/bin"}
    assert complete_environment(environment, tmp_path) is None
    assert environment == {"PATH": "/bin"}


def test_unwritable_folder_is_an_error_of_the_package(authority: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValue, match="cannot be written for other clients"):
        complete_environment({"DETCLOUD_CA_FILE": str(authority)}, tmp_path / "file")
