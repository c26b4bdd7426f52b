"""The model code of an experiment: its files, and the text of one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from control_plane.errors import Code, RequestError
from control_plane.objects.store import ObjectNotFound
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest, page_from_sequence
from control_plane.services import Services
from detcloud.shared.archive_limits import ArchiveInvalid

# What reads archives is imported by the first request that needs one.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from control_plane.objects.code_archives import CodeFile

    Found = TypeVar("Found")

CODE_LIST = "experiment-code"


class CodeFileAnswer(Answer):
    """A file of an experiment's model code; `size` is in bytes. `is_text`: its first 1 MiB are
    UTF-8 without control characters but tabs, ends of lines and form feeds.
    """

    path: str
    size: int
    is_executable: bool
    is_text: bool
    sha256: str


class CodeTextAnswer(CodeFileAnswer):
    """A file with its `text`, null for one that is no text; `is_truncated`: the text is the first
    1 MiB of a longer file.
    """

    text: str | None
    is_truncated: bool


def code_digest(services: Services, experiment_id: int) -> str:
    """The digest of an experiment's model code; RequestError not_found."""
    _, definition = experiments.get_experiment(services, experiment_id)
    if not definition.code_sha256:
        raise RequestError(Code.NOT_FOUND, f"experiment {experiment_id} has no model code")
    return definition.code_sha256


def list_code_files(services: Services, digest: str, page: PageRequest) -> Page[CodeFileAnswer]:
    """List the files by path, those of a folder beside each other.

    Raises:
        RequestError: not_found; conflict, for an archive that is damaged or breaks a rule.
    """
    files = _ask(digest, lambda: services.code_archives.list_files(digest))

    def to_item(_: int, file: CodeFile) -> CodeFileAnswer:
        return CodeFileAnswer.model_validate(file, from_attributes=True)

    return page_from_sequence(files, page, CODE_LIST, to_item)


def read_code_file(services: Services, digest: str, path: str) -> CodeTextAnswer:
    """Describe the file at a path, with its text; RequestError as `list_code_files`."""
    from control_plane.objects.code_archives import TEXT_BYTES_MAX

    found = _ask(digest, lambda: services.code_archives.read_text(digest, path))
    if found is None:
        raise RequestError(Code.NOT_FOUND, f"the model code has no file {path!r}")
    file, text = found
    return CodeTextAnswer(
        path=file.path,
        size=file.size,
        is_executable=file.is_executable,
        is_text=file.is_text,
        sha256=file.sha256,
        text=text if file.is_text else None,
        is_truncated=file.is_text and file.size > TEXT_BYTES_MAX,
    )


def _ask(digest: str, ask: Callable[[], Found]) -> Found:
    try:
        return ask()
    except ObjectNotFound:
        text = f"the model code {digest} is no longer stored here"
        raise RequestError(Code.NOT_FOUND, text) from None
    except ArchiveInvalid as error:
        text = f"the model code {digest} cannot be shown: {error}; "
        text += "`detcloud experiment download-model-def` downloads the files that can be unpacked"
        raise RequestError(Code.CONFLICT, text) from None
