"""Forms of configurations from releases 0.12 to 0.38 of Determined."""

from typing import Any

import pytest
import yaml

from control_plane.config.advice import config_warnings
from control_plane.config.check import check_config
from tests.unit.config.samples import change_fields, find_problems, to_yaml

SCRIPT = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
ASHA = "entrypoint: python3 train.py\nsearcher: {name: adaptive_asha, metric: loss, max_trials: 4"
STEPS = """
entrypoint: model_def:Trial
hyperparameters: {global_batch_size: 64}
searcher: {name: adaptive, metric: loss, target_trial_steps: 8, step_budget: 64, max_rungs: 2}
"""
TRIAL = """
entrypoint: model_def:Trial
hyperparameters: {global_batch_size: 64}
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""
IMAGE = "determinedai/pytorch-ngc:0.38.1"

# A configuration, and the fields that give a notice.
ACCEPTED: dict[str, tuple[str, list[str]]] = {
    "steps": (STEPS + "batches_per_step: 50\nmin_validation_period: 2\n", []),
    "labels as a map": (TRIAL + "labels: {a: true}\n", []),
    "numbers without a point": (
        TRIAL.replace("64}", "64, lr: {type: double, minval: 1e-5, maxval: 1e-4}}"),
        # The single searcher draws a value of the range.
        ["hyperparameters.lr"],
    ),
    "a list of ranges": (
        TRIAL.replace(
            "64}", "64, nodes: [{type: int, minval: 1, maxval: 2}, {type: const, val: 1}]}"
        ),
        [],
    ),
    "names with points": (
        TRIAL.replace("64}", "64, cfg: {optim.lr: 1, optim._delete_: true}}"),
        [],
    ),
    "a folded entrypoint": (
        SCRIPT.replace(
            "python3", ">-\n  python3 -m determined.launch.torch_distributed\n  python3"
        ),
        [],
    ),
    "an entrypoint as a list": (
        SCRIPT.replace("python3 train.py", "[python3, -m, determined.launch.horovod, a:B]"),
        [],
    ),
    "horovod with an option": (
        TRIAL.replace("model", "python3 -m determined.launch.horovod --autohorovod --trial model"),
        [],
    ),
    "no length": (SCRIPT, []),
    "a length without a unit": (SCRIPT.replace("loss}", "loss, max_length: 100}"), []),
    "time": (ASHA + ", max_time: 20, time_metric: epochs}\nrecords_per_epoch: 6000\n", []),
    "epochs": (
        TRIAL.replace("batches: 10", "epochs: 10").replace("{global_batch_size: 64}", "{}")
        + "min_validation_period: {epochs: 1}\nmin_checkpoint_period: {epochs: 2}\n",
        [],
    ),
    "a script's epochs": (SCRIPT.replace("loss}", "loss, max_length: {epochs: 3}}"), []),
    "rungs in epochs": (ASHA + ", max_length: {epochs: 64}}\n", []),
    "stop_once": (ASHA + ", max_length: {batches: 64}, stop_once: true}\n", []),
    "a custom search": (SCRIPT.replace("single", "custom, unit: batches"), []),
    "both forms of log policies": (
        SCRIPT
        + "log_policies: [{pattern: a, action: {type: cancel_retries}},"
        + " {name: n, pattern: b, actions: [exclude_node, {signal: s}]}]\n",
        [],
    ),
    "a log policy with a webhook": (
        SCRIPT + "log_policies: [{type: send_webhook, pattern: a, webhook_name: w}]\n",
        [],
    ),
    "settings of HPC schedulers": (
        SCRIPT + "slurm: {sbatch_args: [-n 1]}\npbs: {pbsbatch_args: [-x]}\n",
        ["slurm", "pbs"],
    ),
    "integrations": (
        SCRIPT
        + "integrations: {webhooks: {exclude: true}}\nretention_policy: {log_retention_days: 1}\n",
        [],
    ),
    "proxied ports": (
        SCRIPT + "environment: {proxy_ports: [{proxy_port: 80, unauthenticated: true}]}\n",
        ["environment.proxy_ports.unauthenticated"],
    ),
    "an image by the former name of a device": (
        SCRIPT + f"environment: {{image: {{gpu: {IMAGE}}}, ports: null, pod_spec: null}}\n",
        ["environment.image.cuda"],
    ),
    "the slots of a template for commands": (
        SCRIPT + "resources: {slots: 2}\n",
        ["resources.slots"],
    ),
    "a native experiment": (
        TRIAL.replace("entrypoint: model_def:Trial", "internal: {native: {command: [a.py]}}"),
        ["internal"],
    ),
    "a stored default": (
        SCRIPT + "data_layer: {type: shared_fs, container_storage_path: null}\n",
        [],
    ),
    "places": (SCRIPT + "workspace: a\nproject: b\npreemption_timeout: 60\n", []),
}


@pytest.mark.parametrize("form", ACCEPTED)
def test_accepts_forms_of_determined_with_notices_of_unused_fields(form: str) -> None:
    text, noticed = ACCEPTED[form]
    warnings = config_warnings(check_config(text))
    assert [warning.split(" ")[0].rstrip(":") for warning in warnings] == noticed


@pytest.mark.parametrize(
    ("changes", "path", "hint"),
    [
        ({"min_validation_period": 1}, "searcher.max_length", "use a length like {batches: 100}"),
        (
            {"searcher.max_length": {"batches": 1, "records": 1}},
            "searcher.max_length",
            "remove all",
        ),
        (
            {"searcher.smallest_is_better": True},
            "searcher.smallest_is_better",
            "did you mean smaller",
        ),
        (
            {"bind_mounts": [{"host_path": "/a", "container_path": "."}]},
            "bind_mounts[0].container_path",
            "mount a folder below",
        ),
    ],
)
def test_rejects_values_that_determined_rejects_and_hints_at_the_fix(
    changes: dict[str, Any], path: str, hint: str
) -> None:
    tree = change_fields(yaml.safe_load(TRIAL), changes)
    (problem,) = find_problems(to_yaml(tree))
    assert problem.path == path
    assert problem.hint.startswith(hint)


@pytest.mark.parametrize("given_path", ["host", "container"])
def test_local_cache_needs_host_and_container_path(given_path: str) -> None:
    layer = {"type": "s3", "bucket": "b", "bucket_directory_path": "d"}
    text = SCRIPT + f"data_layer: {layer | {f'local_cache_{given_path}_path': '/a'}}\n"
    [problem] = find_problems(text)
    assert problem.path == "data_layer.local_cache_container_path"
    assert "local_cache_host_path" in problem.message
