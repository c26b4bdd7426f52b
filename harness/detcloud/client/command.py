"""Commands: programs that run once on a machine of the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from detcloud.client.client import Client
from detcloud.client.config_text import read_config_text
from detcloud.client.handles import Experiment, Trial
from detcloud.client.resource import path_segment
from detcloud.shared.articles import with_article
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError

COMMAND = "command"
NOTEBOOK = "notebook"
SHELL = "shell"
OVERRIDE_CHARACTERS_MAX = 4096


class Command(Experiment):
    """A command, notebook or shell: an experiment that runs a program once."""

    def trial(self) -> Trial | None:
        """Return the run of the program. Return None until the cluster has created the run."""
        return next(self.trials(1), None)


def create_command(
    client: Client,
    words: Sequence[str],
    *,
    config: str | Path | None = None,
    context: str | Path | None = None,
    includes: Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    template: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Command:
    """Submit a program that runs on a machine of the cluster, and return the command.

    Args:
        words: the program and its arguments, which no shell interprets. Empty if `config` has an
            `entrypoint`.
        config: the path of a YAML file with further settings.
        context: a folder whose content becomes the program's working directory.
        includes: further files and folders, copied next to that content under their last names.
        overrides: changes of the configuration as `a.b=value`, with values in YAML.
        template: the name of a template that supplies missing settings.
        on_progress: called during the upload with the bytes sent and the total bytes.

    Raises:
        DetcloudError: a file cannot be read or packed, or with `config` the words exceed 4,096
            characters as JSON.
        ApiError: the cluster refuses the configuration.
    """
    text, changes = _config_of(words, config)
    code = client.upload_model_code(context, includes=includes, on_progress=on_progress)
    return _create(client, COMMAND, text, [*changes, *overrides], template, code)


def create_interactive(  # noqa: PLR0913 - the options of a submission.
    client: Client,
    kind: str,
    *,
    config: str | Path | None = None,
    context: str | Path | None = None,
    includes: Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    template: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    restored_from: int | None = None,
) -> Command:
    """Submit a notebook (JupyterLab) or a shell on a machine of the cluster, and return the handle.

    Args:
        kind: NOTEBOOK or SHELL.
        config: the path of a YAML file with further settings.
        context: a folder whose content becomes the program's working directory.
        includes: further files and folders, copied next to that content under their last names.
        overrides: changes of the configuration as `a.b=value`, with values in YAML.
        template: the name of a template that supplies missing settings.
        on_progress: called during the upload with the bytes sent and the total bytes.
        restored_from: the id of a notebook or shell whose last snapshot of files is restored. Then
            `context` and `includes` must be empty.

    Raises:
        DetcloudError: a file cannot be read or packed, or files are combined with `restored_from`.
        ApiError: the cluster refuses the configuration, or has no snapshot.
    """
    text = read_config_text({} if config is None else config)
    if restored_from is not None:
        if context is not None or includes:
            raise DetcloudError(
                f"the files of {restored_from} are restored, so that no other files can be uploaded"
            )
        return _create(client, kind, text, overrides, template, None, restored_from)
    code = client.upload_model_code(context, includes=includes, on_progress=on_progress)
    return _create(client, kind, text, overrides, template, code)


def read_command(client: Client, command_id: int, kind: str = COMMAND) -> Command:
    """Return the command, notebook or shell with this id, depending on `kind`.

    Raises:
        ApiError: `not_found`, nothing has this id.
        DetcloudError: the id belongs to something of another kind.
    """
    try:
        data = client.get(f"/experiments/{path_segment(command_id)}")
    except ApiError as error:
        if error.code != "not_found":
            raise
        # The API's message calls commands experiments, too.
        message = error.message.replace("experiment", kind, 1)
        raise ApiError(error.status, error.code, message, error.details) from None
    if data["kind"] != kind:
        found = with_article(data["kind"])
        raise DetcloudError(f"{command_id} is {found}, not a {kind}: see `detcloud {kind} list`")
    return Command(client, data)


def _create(
    client: Client,
    kind: str,
    config: str,
    overrides: Sequence[str],
    template: str | None,
    code: str | None,
    restored_from: int | None = None,
) -> Command:
    body: dict[str, object] = {
        "kind": kind,
        "config": config,
        "template": template,
        "overrides": list(overrides),
        "model_code": code,
    }
    if restored_from is not None:
        body["restored_from"] = restored_from
    return Command(client, client.post("/experiments", body))


def _config_of(words: Sequence[str], config: str | Path | None) -> tuple[str, list[str]]:
    """Return the configuration text, and the overrides that set the entrypoint to `words`.

    Without `config`, the text has the entrypoint and no overrides are returned. Raises
    DetcloudError if the entrypoint exceeds OVERRIDE_CHARACTERS_MAX, or the file cannot be read.
    """
    if config is None:
        return read_config_text({"entrypoint": list(words)}), []
    changes = [f"entrypoint={json.dumps(list(words))}"] if words else []
    if any(len(change) > OVERRIDE_CHARACTERS_MAX for change in changes):
        raise DetcloudError(
            f"the program and its arguments are longer than {OVERRIDE_CHARACTERS_MAX} characters: "
            f"write them into {config} as `entrypoint`, or send them as a script"
        )
    return read_config_text(config), changes
