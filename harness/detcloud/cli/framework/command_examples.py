"""An example of each command, for `--help` and docs/cli.md.

The examples share their objects: experiment 7 with trial 12, command 9, model `digits`, pool
`gpus` and agent `gpu-1`.
"""

from __future__ import annotations

from collections.abc import Mapping

from detcloud.cli.framework.command_index import Command
from detcloud.cli.framework.deployable_clouds import CLOUDS

_UUID = "2f3a9c1e-6b7d-4e52-9a41-0c8d5e7f1b36"

_EXPERIMENT = {
    "experiment create": "config.yaml model_dir --config searcher.max_trials=8 --follow",
    "experiment fork": "7 --config hyperparameters.lr=0.01",
    "experiment list": "--state running,queued --user ada",
    "experiment describe": "7",
    "experiment follow": "7",
    "experiment debug": "7 model_dir",
    "experiment wait": "7 --timeout 3600",
    "experiment logs": "7 --tail 50",
    "experiment metrics": "7 --plot",
    "experiment curves": "7 > curves.json",
    "experiment rungs": "7",
    "experiment importance": "7",
    "experiment config": "7 > config.yaml",
    "experiment pause": "7",
    "experiment activate": "7",
    "experiment cancel": "7",
    "experiment kill": "7",
    "experiment continue": "7 --config max_restarts=10",
    "experiment archive": "7",
    "experiment unarchive": "7",
    "experiment delete": "7 --dry-run",
    "experiment download": "7 --top-n 3 --output-dir best",
    "experiment download-model-def": "7 --output-dir code",
    "experiment delete-tb-files": "7",
    "experiment label add": "7 baseline",
    "experiment label remove": "7 baseline",
    "experiment move": "7 8 vision/digits",
    "experiment view list": "--workspace vision",
    "experiment view save": "good --filter 'metric:loss<0.3' --column metric:loss --sort-by metric",
    "experiment view delete": "good",
    "experiment set metadata": "7 data.version=3",
    "experiment set name": '7 "digits with dropout"',
    "experiment set description": '7 "dropout after each layer"',
    "experiment set max-slots": "7 4",
    "experiment set weight": "7 2",
    "experiment set priority": "7 10",
    "experiment set max-cost": "7 25",
    "experiment set gc-policy": "7 --save-trial-best 1 --preview",
    "experiment history": "7",
    "experiment replay": "7",
    "experiment list-trials": "7 --sort-by best --limit 5",
    "experiment list-checkpoints": "7 --best 3",
}
_TRIAL = {
    "trial list": "7 --state failed",
    "trial describe": "12 --metrics-summary",
    "trial logs": "12 --follow",
    "trial metrics": "12 --name validation_loss --plot",
    "trial ranks": "12",
    "trial set metadata": "12 data.version=3",
    "trial kill": "12",
    "trial download": "12 --best --output-dir best",
    "trial support-bundle": "12",
}
_RUNS = {
    "command run": "python prepare.py --size 100",
    "command list": "--all --state running",
    "command describe": "9",
    "command logs": "9 --follow",
    "command kill": "9",
    "command config": "9",
    "command set priority": "9 10",
    "notebook start": "--config resources.slots=1",
    "notebook list": "--all",
    "notebook open": "9",
    "notebook logs": "9 --tail 20",
    "notebook kill": "9",
    "notebook config": "9",
    "notebook set priority": "9 10",
    "shell start": "--config resources.slots=1",
    "shell list": "--all",
    "shell open": "9",
    "shell show-ssh-command": "9",
    "shell logs": "9 --tail 20",
    "shell kill": "9",
    "shell config": "9",
    "shell set priority": "9 10",
}
_STORED = {
    "checkpoint list": "7 --best 3",
    "checkpoint describe": _UUID,
    "checkpoint files": _UUID,
    "checkpoint download": f"{_UUID} --output-dir best",
    "checkpoint verify": _UUID,
    "checkpoint upload": "best --trial 12 --steps 1000",
    "checkpoint set metadata": f"{_UUID} data.version=3",
    "checkpoint pin": _UUID,
    "checkpoint unpin": _UUID,
    "checkpoint delete": f"{_UUID} --dry-run",
    "model list": "--owner ada",
    "model describe": "digits --version 2",
    "model create": 'digits --description "digits from scans"',
    "model set": "digits --label production",
    "model move": "digits --workspace-name vision",
    "model archive": "digits",
    "model unarchive": "digits",
    "model delete": "digits",
    "model list-versions": "digits",
    "model register-version": f"digits {_UUID}",
    "model set-version": 'digits 2 --comment "trained on all scans"',
    "model delete-version": "digits 2",
    "model export": "digits 2 exported",
    "workspace list": "",
    "project list": "vision",
    "tensorboard start": "7",
    "tensorboard download": "7 --output-dir events",
    "template list": "--details",
    "template describe": "gpu-image",
    "template create": "gpu-image template.yaml",
    "template set": "gpu-image template.yaml",
    "template remove": "gpu-image",
    "report list": "",
    "report show": "3 > report.md",
    "report create": '"Dropout on digits" report.md --sharing read',
    "report edit": "3 report.md --revision 4",
    "report delete": "3",
}
_CLUSTER = {
    "job list": "--resource-pool gpus",
    "job update": "7 --ahead-of 5",
    "job update-batch": "7.priority=1 8.priority=50",
    "resource-pool list": "",
    "resource-pool describe": "gpus",
    "resource-pool create": "gpus pool.yaml",
    "resource-pool set": "gpus --config max_instances=8",
    "resource-pool drain": "gpus",
    "resource-pool undrain": "gpus",
    "resource-pool remove": "gpus",
    "agent list": "",
    "agent describe": "gpu-1",
    "agent enable": "gpu-1",
    "agent disable": "gpu-1 --drain",
    "alarm list": "--all",
    "alarm describe": "queue-wait",
    "slot list": "--agent gpu-1",
    "slot enable": "gpu-1 0",
    "slot disable": "gpu-1 0",
    "token list": "",
    "token describe": "3",
    "token create": "ada --role user --expires-days 90",
    "token revoke": "3",
    "token login": "",
    "user whoami": "",
    "user logout": "",
    "config check": "config.yaml --offline",
    "cluster up": "--slots 2",
    "cluster down": "",
    "cluster open": "",
    "cluster status": "",
    "cluster apply": "cluster.yaml --dry-run",
    "cluster backup": "cluster.tar.gz",
    "cluster restore": "cluster.tar.gz",
    "page export": "page --api https://cluster.example.com",
    "master info": "",
    "master logs": "--follow",
    "debug dump": "experiment#7",
    "deploy export": "--team vision --config cluster.yaml --output terraform",
}
_FLAT = {
    "preview-search": "config.yaml",
    "simulate": "config.yaml --slots 8",
    "simulate cluster": "--seed 1 --hours 2",
    "completion": "bash",
    "ssh": "9 nvidia-smi",
    "ssh config": "--install",
    "ssh proxy": "detcloud-9",
    "tunnel": "9 9000:8888",
    "cost": "--by user --since 2026-11-01",
    "version": "",
}
_DEPLOY = {
    "": "--team vision --config cluster.yaml --preview",
    "check ": "--team vision --config cluster.yaml",
    "upgrade ": "--team vision --config cluster.yaml",
    "rollback ": "--team vision",
    "prune ": "--team vision",
    "policy ": "--team vision --config cluster.yaml",
    "trust ": "--team vision",
    "destroy ": "--team vision --drain-only",
    "verify ": "--team vision --max-cost 1",
    "restore ": "--team vision --time 2026-11-28T12:00:00Z",
}

EXAMPLES: Mapping[str, str] = {
    **_EXPERIMENT,
    **_TRIAL,
    **_RUNS,
    **_STORED,
    **_CLUSTER,
    **_FLAT,
    **{f"deploy {verb}{cloud.name}": words for cloud in CLOUDS for verb, words in _DEPLOY.items()},
}
"""The words after the name of each command, by `Command.name`."""


def example_of(command: Command) -> str:
    """Return an example that a user can type, in the shortest form: `detcloud list --user ada`.

    Args:
        command: an entry of the index. A command without an example raises KeyError.
    """
    name = command.flat[0] if command.flat else command.name
    return f"detcloud {name} {EXAMPLES[command.name]}".rstrip()
