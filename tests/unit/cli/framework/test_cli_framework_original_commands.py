"""Determined's commands: supported with their flags, or answered by a hint on the replacement."""

from pathlib import Path

import pytest

from detcloud.cli.framework.command_index import commands_by_verb, flat_commands
from detcloud.cli.framework.command_parser import load_command
from detcloud.cli.framework.exit_codes import USAGE
from detcloud.cli.framework.nouns import NOUN_ALIASES
from detcloud.cli.framework.original_commands import find_replacement
from tests.unit.cli.conftest import Detcloud
from tests.unit.cli.parser_actions import actions_of

PAGES = "--limit --offset --pages"
FILTERS = (
    "--follow -f --head --tail --json --agent-id --container-id --rank-id --timestamp-before "
    "--timestamp-after --level --source --stdtype"
)
ORDER = "--output-dir -o --sort-by --smaller-is-better --quiet -q"
ORIGINAL = {
    "e activate": "",
    "e unpause": "",
    "e archive": "",
    "e cancel": "",
    "e config": "",
    "e continue": "--config-file --config --follow-first-trial -f",
    "e create": "--include -i --local --template --project_id --config --follow-first-trial -f "
    "--paused --test-mode --test -t --publish -p --git -g",
    "e delete": "--yes",
    "e delete-tb-files": "",
    "e describe": "--metrics --csv --json --outdir",
    "e download": f"--top-n {ORDER}",
    "e download-model-def": "--output-dir",
    "e kill": "",
    "e label add": "",
    "e label remove": "",
    "e list": f"--all -a --show_project --csv {PAGES}",
    "e list-checkpoints": "--best --csv",
    "e lc": "--best --csv",
    "e list-trials": f"--csv {PAGES}",
    "e logs": FILTERS,
    "e move": "",
    "e pause": "",
    "p list": "--sort-by --order-by --limit --offset --json",
    "p ls": "",
    "w list": "--sort-by --order-by --limit --offset --json",
    "w ls": "",
    "e set description": "",
    "e set gc-policy": "--save-experiment-best --save-trial-best --save-trial-latest --yes",
    "e set max-slots": "",
    "e set name": "",
    "e unarchive": "",
    "e wait": "--polling-interval",
    "t describe": f"--metrics-summary --metrics --csv --json {PAGES}",
    "t download": f"--best --latest --uuid {ORDER}",
    "t kill": "",
    "t logs": FILTERS,
    "t support-bundle": "--output-dir -o",
    "c delete": "--yes",
    "c describe": "",
    "c download": "--output-dir -o --quiet -q --mode",
    "c rm": "--glob --yes",
    "a list": "--csv --json",
    "a enable": "--all",
    "a disable": "--all --drain --csv --json",
    "s list": "--csv --json",
    "s enable": "",
    "s disable": "",
    "tpl list": "--details -d",
    "tpl describe": "",
    "tpl create": "--workspace-name -w",
    "tpl set": "",
    "tpl rm": "",
    "j list": f"--resource-pool -p --reverse --json --yaml --csv --table {PAGES}",
    "j ls": "",
    "j update": "--priority -p --weight -w --resource-pool --ahead-of --behind-of",
    "j u": "",
    "j update-batch": "",
    "e set weight": "",
    "e set priority": "",
    "tkn create": "--expiration-days -e --description -d --json --yaml",
    "tkn describe": "--json --yaml",
    "tkn list": "--show-inactive --json --yaml",
    "tkn login": "",
    "tkn revoke": "",
    "cmd run": "--config-file --volume -v --context -c --include -i --workspace-name -w --config "
    "--template --detach -d",
    "cmd list": "--sort-by --order-by --quiet -q --workspace-name -w --all -a --json --csv",
    "notebook start": "--config-file --workspace-name -w --volume -v --context -c --include -i "
    "--config --template --no-browser --detach -d --preview",
    "notebook list": "--sort-by --order-by --quiet -q --workspace-name -w --all -a --json --csv",
    "shell start": "--config-file --workspace-name -w --volume -v --context -c --include -i "
    "--config --template --detach -d --show-ssh-command",
    "shell list": "--sort-by --order-by --quiet -q --workspace-name -w --all -a --json --csv",
    "shell open": "--show-ssh-command",
    "shell kill": "--force -f",
    "shell logs": FILTERS,
    "shell config": "",
    "shell set priority": "",
    "m create": "--workspace-name -w --description --json",
    "m delete": "",
    "m describe": "--json --version",
    "m list": "--workspace-names -w --sort-by --order-by --json",
    "m ls": "",
    "m list-versions": "--json",
    "m move": "--workspace-name -w",
    "m register-version": "--json",
    "tb start": "--trial-ids -t --workspace-name -w --config-file --context -c --include -i "
    "--config --no-browser --detach -d",
    "u whoami": "",
    "u logout": "--all -a",
    "master info": "--json --yaml",
    "master logs": "--follow -f --tail",
    "preview-search": "",
    "version": "",
}


@pytest.mark.parametrize("typed", ORIGINAL)
def test_accepts_flags_of_a_determined_command(typed: str) -> None:
    first, _, verb = typed.partition(" ")
    noun = NOUN_ALIASES.get(first, first)
    command = commands_by_verb(noun)[verb] if verb else flat_commands()[first]
    parser, _ = load_command(command, typed)
    flags = {flag for action in actions_of(parser) for flag in action.option_strings}
    assert set(ORIGINAL[typed].split()) <= flags


@pytest.mark.parametrize(
    "noun",
    [
        "auth",
        "config-policies",
        "cp",
        "oauth",
        "rbac",
        "resources",
        "res",
        "task",
        "tensorboard",
        "user-group",
    ],
)
def test_unsupported_determined_noun_has_a_replacement(noun: str) -> None:
    assert find_replacement([noun, "list"])


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        ("deploy aws up --cluster-id x", "`detcloud deploy aws --team TEAM`"),
        ("d gcp down --cluster-id x", "`detcloud deploy destroy gcp --team TEAM`"),
        ("deploy aws list", "Pulumi.TEAM.yaml"),
        ("deploy gcp dump-master-config-template", "`detcloud cluster apply FILE`"),
        ("deploy gke-experimental up", "`detcloud deploy gcp --team TEAM`"),
        ("deploy local cluster-up", "`detcloud up`"),
        ("dev curl /api/v1/experiments", "`curl -H 'Authorization: Bearer TOKEN'"),
        ("dev bindings list", "/api/v1/openapi.json describes the API"),
        ("dev auth-token", "`detcloud token create`"),
        ("resources aggregated 2026-01-01 2026-01-31", "`detcloud cost --by user"),
        ("res raw a b", "`detcloud cost --by user"),
        # In Determined 0.12 to 0.17, `m` meant `master`.
        ("m logs -f", "`detcloud master logs`"),
        ("m config", "`detcloud status`"),
    ],
)
def test_error_for_a_determined_command_names_the_replacement(
    typed: str, instead: str, detcloud: Detcloud
) -> None:
    done = detcloud(*typed.split())
    assert done.code == USAGE
    error, hint = done.err.splitlines()
    assert "is not a known command" in error
    assert instead in hint


def test_folder_with_the_name_of_a_determined_verb_is_a_folder(
    detcloud: Detcloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "curl").mkdir()
    monkeypatch.setenv("DETCLOUD_URL", "http://127.0.0.1:9")
    assert "is not a known command" not in detcloud("dev", "curl", "--code", "--", "ls").err


def test_det_master_is_reported_as_unused(
    detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_MASTER", "http://master:8080")
    assert "DET_MASTER is not used: --url or DETCLOUD_URL names the cluster" in detcloud("list").err
    monkeypatch.setenv("DETCLOUD_URL", "http://127.0.0.1:9")
    assert "DET_MASTER" not in detcloud("list").err
