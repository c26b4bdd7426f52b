"""Queries of an experiment's model code: the list of files and the text of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from control_plane.errors import Code, RequestError
from control_plane.objects.store import ObjectNotFound
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest, page_from_sequence
from control_plane.services import Services
from detcloud.shared.archive_limits import ArchiveInvalid

# Archives are read by a module that the first request for an archive imports.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from control_plane.objects.code_archives import CodeFile

    Content = TypeVar("Content")

CODE_LIST = "experiment-code"


class CodeFileAnswer(Answer):
    """A file of an experiment's model code.

    `size` is in bytes. `is_text` is true if the first 1 MiB of the file is UTF-8 whose only
    control characters are tabs, line ends and form feeds.
    """

    path: str
    size: int
    is_executable: bool
    is_text: bool
    sha256: str


class CodeTextAnswer(CodeFileAnswer):
    """A file of an experiment's model code with the content.

    `text` is null for a file that is not text. `is_truncated` is true if `text` is the first 1 MiB
    of a longer file.
    """

    text: str | None
    is_truncated: bool


def code_digest(services: Services, experiment_id: int) -> str:
    """Return the SHA-256 digest of an experiment's model code. The archive is not read.

    Raises:
        RequestError: not_found, if the experiment does not exist or has no model code.
    """
    _, definition = experiments.get_experiment(services, experiment_id)
    if not definition.code_sha256:
        raise RequestError(Code.NOT_FOUND, f"experiment {experiment_id} has no model code")
    return definition.code_sha256


def list_code_files(services: Services, digest: str, page: PageRequest) -> Page[CodeFileAnswer]:
    """Return a page of the files of the model code, sorted by path, grouped by folder.

    The archive is read and checked unless cached.

    Raises:
        RequestError: not_found, if no archive with this digest is stored; conflict, if the archive
            is damaged or breaks a rule; invalid, for a cursor of another list.
        OSError: the object store does not answer.
    """
    files = _read_archive(digest, lambda: services.code_archives.list_files(digest))

    def to_item(_: int, file: CodeFile) -> CodeFileAnswer:
        return CodeFileAnswer.model_validate(file, from_attributes=True)

    return page_from_sequence(files, page, CODE_LIST, to_item)


def read_code_file(services: Services, digest: str, path: str) -> CodeTextAnswer:
    """Return the file at a path of the model code, with at most the first 1 MiB of the file's text.

    Raises:
        RequestError: not_found, if the archive or the path does not exist; conflict, if the archive
            is damaged or breaks a rule.
        OSError: the object store does not answer.
    """
    from control_plane.objects.code_archives import TEXT_BYTES_MAX

    file_and_text = _read_archive(digest, lambda: services.code_archives.read_text(digest, path))
    if file_and_text is None:
        raise RequestError(Code.NOT_FOUND, f"the model code has no file {path!r}")
    file, text = file_and_text
    return CodeTextAnswer(
        path=file.path,
        size=file.size,
        is_executable=file.is_executable,
        is_text=file.is_text,
        sha256=file.sha256,
        text=text if file.is_text else None,
        is_truncated=file.is_text and file.size > TEXT_BYTES_MAX,
    )


def _read_archive(digest: str, read: Callable[[], Content]) -> Content:
    """Call `read` and return the result. `digest` names the archive in the errors.

    Raises:
        RequestError: not_found, if `read` raises ObjectNotFound; conflict, if `read` raises
            ArchiveInvalid, because the archive is damaged or breaks a rule.
        Exception: any other error of `read`.
    """
    try:
        return read()
    except ObjectNotFound:
        text = f"the model code {digest} is no longer stored here"
        raise RequestError(Code.NOT_FOUND, text) from None
    except ArchiveInvalid as error:
        text = f"the model code {digest} cannot be shown: {error}; "
        text += "`detcloud experiment download-model-def` downloads the files that can be unpacked"
        raise RequestError(Code.CONFLICT, text) from None
