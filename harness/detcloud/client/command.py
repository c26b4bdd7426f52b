"""Commands: programs that run once on a machine of the cluster."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from detcloud.client.client import Client
from detcloud.client.config_text import read_config_text
from detcloud.client.experiment import Experiment
from detcloud.client.resource import path_segment
from detcloud.client.trial import Trial
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError

COMMAND = "command"
NOTEBOOK = "notebook"
SHELL = "shell"
OVERRIDE_CHARACTERS_MAX = 4096


class Command(Experiment):
    """A program that runs once. Of an experiment it has the settings, the states and the place in
    the queue.
    """

    def trial(self) -> Trial | None:
        """The one run, with log and `exit_code`; None for a moment after the creation."""
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
    """Runs a program on a machine of the cluster.

    Args:
        words: the program and its arguments, which no shell looks at. Empty where `config` names
            an `entrypoint`.
        config: the path of a YAML file with further settings.
        context: a folder whose content becomes the program's working directory.
        includes: more files and folders, which lie beside it under their last names.
        overrides: `a.b=value`, the values being YAML.
        template: the name of a template to complete the configuration with.

    Raises:
        DetcloudError: the files cannot be read or packed, or there are too many words.
    """
    text, changes = _config_of(words, config)
    code = _upload_files(client, context, includes, on_progress)
    return _create(client, COMMAND, text, [*changes, *overrides], template, code)


def create_interactive(
    client: Client,
    kind: str,
    *,
    config: str | Path | None = None,
    context: str | Path | None = None,
    includes: Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    template: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Command:
    """Runs JupyterLab, or what opens shells, on a machine of the cluster: `kind` is NOTEBOOK or
    SHELL. The other arguments are those of `create_command`.
    """
    text = read_config_text({} if config is None else config)
    code = _upload_files(client, context, includes, on_progress)
    return _create(client, kind, text, overrides, template, code)


def read_command(client: Client, command_id: int, kind: str = COMMAND) -> Command:
    """The command, or the notebook or shell as `kind`, with this id.

    Raises:
        ApiError: not_found, there is nothing with this id.
        DetcloudError: the id is that of something else.
    """
    try:
        data = client.get(f"/experiments/{path_segment(command_id)}")
    except ApiError as error:
        if error.code != "not_found":
            raise
        # The API calls everything with such a number an experiment.
        message = error.message.replace("experiment", kind, 1)
        raise ApiError(error.status, error.code, message, error.details) from None
    if data["kind"] != kind:
        article = "an" if data["kind"] == "experiment" else "a"
        raise DetcloudError(
            f"{command_id} is {article} {data['kind']}, not a {kind}: see `detcloud {kind} list`"
        )
    return Command(client, data)


def _create(
    client: Client,
    kind: str,
    config: str,
    overrides: Sequence[str],
    template: str | None,
    code: str,
) -> Command:
    body = {
        "kind": kind,
        "config": config,
        "template": template,
        "overrides": list(overrides),
        "model_code": code,
    }
    return Command(client, client.post("/experiments", body))


def _upload_files(
    client: Client,
    context: str | Path | None,
    includes: Sequence[str | Path],
    on_progress: Callable[[int, int], None] | None,
) -> str:
    """Send the files of a command, which may have none, and return their digest."""
    with tempfile.TemporaryDirectory(prefix="detcloud-empty-") as empty:
        folder = context or (None if includes else empty)
        return client.upload_model_code(folder, includes=includes, on_progress=on_progress)


def _config_of(words: Sequence[str], config: str | Path | None) -> tuple[str, list[str]]:
    """The configuration's text, and what is to be changed in it."""
    if config is None:
        return read_config_text({"entrypoint": list(words)}), []
    changes = [f"entrypoint={json.dumps(list(words))}"] if words else []
    if any(len(change) > OVERRIDE_CHARACTERS_MAX for change in changes):
        raise DetcloudError(
            f"the program and its arguments are longer than {OVERRIDE_CHARACTERS_MAX} characters: "
            f"write them into {config} as `entrypoint`, or send them as a script"
        )
    return read_config_text(config), changes
