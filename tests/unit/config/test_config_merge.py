from __future__ import annotations

from typing import Any

import pytest

from control_plane.config.check import check_config
from control_plane.config.hyperparameters import Const, Int
from tests.unit.config.samples import LENGTH, STEP, change_fields, find_problems, to_yaml
from tests.unit.config.test_config_searchers import PBT

CLUSTER: dict[str, Any] = {
    "checkpoint_storage": {"type": "s3", "bucket": "shared", "save_trial_best": 5},
    "resources": {"shm_size": 4294967296},
    "environment": {"image": {"cpu": "cluster-cpu", "cuda": "cluster-cuda"}},
}
SHORT = to_yaml(LENGTH)
IN_EPOCHS = {**LENGTH, "records_per_epoch": 90, "hyperparameters": {"global_batch_size": 5}}


def test_user_overrides_template_and_template_overrides_cluster() -> None:
    template = to_yaml({"max_restarts": 1, "resources": {"shm_size": 7, "weight": 3}})
    text = to_yaml(change_fields(LENGTH, {"resources": {"weight": 2}}))
    config = check_config(text, template=template, cluster=CLUSTER)
    assert (config.max_restarts, config.resources.weight) == (1, 2.0)
    assert config.resources.shm_size == 7
    assert check_config(text, cluster=CLUSTER).resources.shm_size == 4294967296


def test_same_storage_type_keeps_fields_of_the_cluster() -> None:
    text = to_yaml(change_fields(LENGTH, {"checkpoint_storage": {"save_trial_latest": 2}}))
    storage = check_config(text, cluster=CLUSTER).masked_values()["checkpoint_storage"]
    assert (storage["type"], storage["bucket"]) == ("s3", "shared")
    assert (storage["save_trial_best"], storage["save_trial_latest"]) == (5, 2)


@pytest.mark.parametrize("era", [STEP, LENGTH])
def test_different_storage_type_keeps_only_shared_fields(era: dict[str, Any]) -> None:
    mine = {"type": "shared_fs", "host_path": "/mine"}
    text = to_yaml(change_fields(era, {"checkpoint_storage": mine}))
    storage = check_config(text, cluster=CLUSTER).masked_values()["checkpoint_storage"]
    assert (storage["type"], storage["save_trial_best"]) == ("shared_fs", 5)
    assert "bucket" not in storage


def test_different_searcher_keeps_only_shared_fields() -> None:
    template = (
        "searcher: {name: random, metric: accuracy, smaller_is_better: false, source_trial_id: 3, "
        "max_trials: 5, max_length: 7}"
    )
    mine = {"name": "single", "max_length": {"batches": 9}}
    config = check_config(to_yaml(change_fields(LENGTH, {"searcher": mine})), template=template)
    shared = config.searcher.metric, config.searcher.smaller_is_better
    assert (shared, config.searcher.source_trial_id) == (("accuracy", False), 3)
    assert (config.searcher.name, config.trials) == ("single", 1)
    (problem,) = find_problems(
        to_yaml(change_fields(LENGTH, {"searcher": {"name": "single"}})), template=template
    )
    assert problem.path == "searcher.max_length"
    assert problem.message.startswith("is required, since model_def:MyTrial trains")


def test_different_searcher_discards_options_of_the_template() -> None:
    template = "searcher: {name: random, metric: accuracy, max_trials: 5, max_length: 7}"
    assert check_config(to_yaml(LENGTH), template=template).trials == 1
    partial = to_yaml({"entrypoint": "a:B", "searcher": {"max_trials": 9}})
    config = check_config(partial, template=template)
    assert (config.trials, config.searcher.metric) == (9, "accuracy")


def test_different_hyperparameter_type_discards_the_template() -> None:
    template = "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}, other: {a: 1}}"
    mine = {
        "lr": {"type": "log", "base": 10, "minval": -3, "maxval": 0},
        "other": {"type": "const", "val": 5},
    }
    config = check_config(
        to_yaml(change_fields(LENGTH, {"hyperparameters": mine})), template=template
    )
    assert set(config.masked_values()["hyperparameters"]["other"]) == {"type", "val"}
    fixed = check_config(
        to_yaml(change_fields(LENGTH, {"hyperparameters.lr": 0.1})), template=template
    )
    assert fixed.masked_values()["hyperparameters"]["lr"] == {"type": "const", "val": 0.1}


@pytest.mark.parametrize("era", [STEP, LENGTH])
def test_typed_hyperparameter_replaces_the_template(era: dict[str, Any]) -> None:
    template = "hyperparameters: {lr: {type: double, minval: 0, maxval: 1, count: 5}}"
    mine = {"type": "double", "minval": 0.5, "maxval": 2}
    config = check_config(
        to_yaml(change_fields(era, {"hyperparameters.lr": mine})), template=template
    )
    lr = config.masked_values()["hyperparameters"]["lr"]
    assert lr == {"count": None, **mine}
    partial = {"type": "double", "minval": 0.5}
    (problem,) = find_problems(
        to_yaml(change_fields(era, {"hyperparameters.lr": partial})), template=template
    )
    assert (problem.path, problem.message) == ("hyperparameters.lr.maxval", "is required")


@pytest.mark.parametrize("era", [STEP, LENGTH])
def test_null_unsets_a_hyperparameter_of_the_template(era: dict[str, Any]) -> None:
    template = "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}, batch: {a: 1}}"
    if era is STEP:
        template = template.replace(", batch: {a: 1}", "")
    text = to_yaml(change_fields(era, {"hyperparameters.lr": None}))
    assert check_config(text, template=template).hyperparameters["lr"] == Const(val=None)


def test_hyperparameter_groups_merge_and_replace_typed_values() -> None:
    template = "hyperparameters: {opt: {a: 1, b: 2}, lr: {type: double, minval: 0, maxval: 1}}"
    mine = {"opt": {"b": 3}, "lr": {"minval": 5}}
    config = check_config(
        to_yaml(change_fields(LENGTH, {"hyperparameters": mine})), template=template
    )
    assert config.hyperparameters == {
        "opt": {"a": Const(val=1), "b": Const(val=3)},
        "lr": {"minval": Const(val=5)},
    }


def test_free_maps_with_a_type_key_merge() -> None:
    template = "data: {set: {type: a, path: b}}"
    config = check_config(to_yaml(change_fields(LENGTH, {"data.set.type": "c"})), template=template)
    assert config.data == {"set": {"type": "c", "path": "b"}}


def test_null_inherits_in_the_length_era_and_erases_in_the_step_era() -> None:
    template = "resources: {max_slots: 4}"
    nothing = {"resources": {"max_slots": None}}
    assert (
        check_config(to_yaml(change_fields(LENGTH, nothing)), template=template).job.max_slots == 4
    )
    assert (
        check_config(to_yaml(change_fields(STEP, nothing)), template=template).job.max_slots is None
    )


def test_bind_mounts_of_the_template_are_added_in_the_length_era_only() -> None:
    template = to_yaml({"bind_mounts": [mount("/a", "x"), mount("/b", "y")]})
    mine = {"bind_mounts": [mount("/mine", "x")]}
    config = check_config(to_yaml(change_fields(LENGTH, mine)), template=template)
    assert [bind_mount.host_path for bind_mount in config.bind_mounts] == ["/mine", "/b"]
    config = check_config(to_yaml(change_fields(STEP, mine)), template=template)
    assert [bind_mount.host_path for bind_mount in config.bind_mounts] == ["/mine"]


LIST = ["A=template", "B=template"]
BY_DEVICE = {"cpu": ["A=template"], "gpu": ["B=template"]}


@pytest.mark.parametrize(
    ("mine", "below", "cpu", "cuda"),
    [
        (["A=mine"], LIST, "A=mine B=template", "A=mine B=template"),
        ([], LIST, "A=template B=template", "A=template B=template"),
        (["A=mine"], BY_DEVICE, "A=mine", "A=mine B=template"),
        ({"gpu": ["A=mine"]}, LIST, "A=template B=template", "A=mine B=template"),
        ({"cuda": ["A=mine"]}, BY_DEVICE, "A=template", "A=mine B=template"),
        ({"gpu": ["B=mine"], "cpu": None}, BY_DEVICE, "A=template", "B=mine"),
    ],
)
def test_variables_merge_with_lower_layers_by_name(
    mine: Any, below: Any, cpu: str, cuda: str
) -> None:
    text = to_yaml(change_fields(LENGTH, {"environment.environment_variables": mine}))
    layer = {"environment": {"environment_variables": below}}
    for layers in ({"template": to_yaml(layer)}, {"cluster": layer}):
        variables = check_config(text, **layers).environment.environment_variables
        assert (" ".join(variables.cpu), " ".join(variables.cuda)) == (cpu, cuda)


def test_variables_of_template_and_cluster_merge_only_in_the_length_era() -> None:
    template = to_yaml({"environment": {"environment_variables": ["A=t", "B=t"]}})
    cluster = {"environment": {"environment_variables": {"cpu": ["B=c", "C=c"]}}}
    mine = {"environment.environment_variables": ["A=mine"]}
    for era, expected in ((LENGTH, ("A=mine", "B=t", "C=c")), (STEP, ("A=mine",))):
        text = to_yaml(change_fields(era, mine))
        config = check_config(text, template=template, cluster=cluster)
        assert config.environment.environment_variables.cpu == expected


@pytest.mark.parametrize("below", [LIST, BY_DEVICE, {"cpu": 5}])
def test_malformed_variable_is_a_single_problem_above_any_layer(below: Any) -> None:
    text = to_yaml(change_fields(LENGTH, {"environment.environment_variables": ["A=1", "B"]}))
    cluster = {"environment": {"environment_variables": below}}
    (problem,) = find_problems(text, cluster=cluster)
    assert problem.path == "environment.environment_variables[1]"
    assert problem.line == text.splitlines().index("  - B") + 1


@pytest.mark.parametrize(
    ("mine", "below", "merged"),
    [
        (["a"], ["b", "a"], ("a", "b")),
        (["a"], {"b": True, "c": False}, ("a", "b")),
        ({"a": True, "b": False}, ["b", "c"], ("c", "a")),
        (None, ["b"], ("b",)),
    ],
)
def test_labels_merge_with_the_template(mine: Any, below: Any, merged: Any) -> None:
    text = to_yaml(change_fields(LENGTH, {"labels": mine}))
    labels = check_config(text, template=to_yaml({"labels": below})).labels
    assert set(labels) == set(merged)


@pytest.mark.parametrize(
    ("field", "mine"),
    [
        ("labels", ["a"]),
        ("bind_mounts", [{"host_path": "/a", "container_path": "/b"}]),
        ("resources.devices", ["/dev/a:/dev/b"]),
        ("environment.environment_variables", ["A=1"]),
    ],
)
@pytest.mark.parametrize("entry", [{"a": "b"}, ["b"], {"container_path": ["b"]}])
def test_malformed_list_entry_of_template_is_problem(field: str, mine: Any, entry: Any) -> None:
    text = to_yaml(change_fields(LENGTH, {field: mine}))
    problems = find_problems(text, template=to_yaml(change_fields({}, {field: [entry]})))
    assert problems[0].path.startswith(field)


def test_device_replaces_the_template_device_at_the_same_path() -> None:
    below = ["/dev/theirs:/dev/x:r", {"host_path": "/dev/y", "container_path": "/dev/y"}]
    for mine in ("/dev/mine:/dev/x", {"host_path": "/dev/mine", "container_path": "/dev/x"}):
        text = to_yaml(change_fields(LENGTH, {"resources.devices": [mine]}))
        template = to_yaml({"resources": {"devices": below}})
        devices = check_config(text, template=template).resources.devices
        assert [device.host_path for device in devices] == ["/dev/mine", "/dev/y"]


def mount(host_path: str, container_path: str) -> dict[str, str]:
    return {"host_path": host_path, "container_path": container_path}


def test_former_device_name_overrides_the_cluster_image() -> None:
    text = to_yaml(change_fields(LENGTH, {"environment.image": {"gpu": "mine"}}))
    image = check_config(text, cluster=CLUSTER).environment.image
    assert (image.cpu, image.cuda) == ("cluster-cpu", "mine")


def test_problem_of_a_lower_layer_has_no_line_and_names_the_layer() -> None:
    (problem,) = find_problems(SHORT, template="max_restarts: -1")
    assert (problem.path, problem.line, problem.hint) == (
        "max_restarts",
        None,
        "on line 1 of the template",
    )
    (problem,) = find_problems(SHORT, cluster={"max_restarts": "x"})
    assert problem.hint == "set by the cluster"


def test_malformed_template_is_a_single_problem() -> None:
    (problem,) = find_problems(SHORT, template="a: [")
    assert problem.message.startswith("the template on line 1: is not valid YAML")
    (problem,) = find_problems(SHORT, template="[]")
    assert problem.message == "the template on line 1: must be a map of fields"


def test_overrides_are_set_last_and_read_as_yaml() -> None:
    config = check_config(
        SHORT,
        template="max_restarts: 1",
        overrides=["max_restarts=2", "hyperparameters.lr=1e-3", "labels=[a, b]", "name=x=y"],
    )
    assert (config.max_restarts, config.labels, config.name) == (2, ("a", "b"), "x=y")
    assert config.masked_values()["hyperparameters"]["lr"]["val"] == 0.001


def test_override_keeps_other_fields_of_the_section() -> None:
    config = check_config(SHORT, overrides=["searcher.name=random", "searcher.max_trials=3"])
    assert (config.trials, config.searcher.metric) == (3, "loss")


def test_override_with_null_removes_a_field() -> None:
    assert (
        check_config(SHORT + "max_restarts: 7\n", overrides=["max_restarts=null"]).max_restarts == 5
    )


DEEP_PATH = "data." + ".".join("a" * 59)


@pytest.mark.parametrize(
    ("override", "path", "message"),
    [
        ("max_restarts", "max_restarts", "is not of the form path.to.field=value"),
        ("=5", '""', "is not of the form path.to.field=value"),
        ("a..b=5", '"a..b"', "is not of the form path.to.field=value"),
        (".".join("a" * 100) + "=1", ".".join("a" * 100), "is not of the form"),
        ('data."a.b=1', '"data.\\"a.b"', "has a quote that does not end before a dot or the ="),
        # 60 names and 5 maps are 65 levels.
        (f"{DEEP_PATH}={'{a: ' * 5}1{'}' * 5}", DEEP_PATH, "is nested deeper than 64 levels"),
        ("data.x=[", "data.x", "is not valid YAML"),
        ("data.x=!!str 5", "data.x", "tags are not allowed"),
        ("data.x=.nan", "data.x", "must be a finite number"),
        ("entrypoint.x.y=1", "entrypoint", "is not a map, so no field can be set in it"),
        ("max_restarts=-1", "max_restarts", "must be at least 0, not -1"),
        ("max_restart=1", "max_restart", "is not a known field"),
    ],
)
def test_invalid_override_is_a_problem_without_a_line(
    override: str, path: str, message: str
) -> None:
    (problem,) = find_problems(SHORT + "max_restarts: 3\n", overrides=[override])
    assert (problem.path, problem.line) == (path, None)
    assert message in problem.message


DOTTED = SHORT + 'hyperparameters: {"model.layers": 2, lr: 0.1}\n'


def constants(text: str, *overrides: str, template: str | None = None) -> dict[str, Any]:
    """Return the constant hyperparameters after the overrides by name; groups are maps."""
    space = check_config(text, template=template, overrides=overrides).masked_values()
    return {
        name: part["val"] if "val" in part else {inner: leaf["val"] for inner, leaf in part.items()}
        for name, part in space["hyperparameters"].items()
    }


@pytest.mark.parametrize(
    ("override", "values"),
    [
        # Without quotes, names with dots match an existing key.
        ("hyperparameters.model.layers=3", {"model.layers": 3, "lr": 0.1}),
        ('hyperparameters."model.layers"=3', {"model.layers": 3, "lr": 0.1}),
        ("hyperparameters.'model.layers'=3", {"model.layers": 3, "lr": 0.1}),
        ("hyperparameters.model.layers.val=3", {"model.layers": 3, "lr": 0.1}),
        # With quotes, each name is a key, which may be new.
        (
            'hyperparameters."model"."layers"=3',
            {"model.layers": 2, "lr": 0.1, "model": {"layers": 3}},
        ),
        ('hyperparameters."a=b.c"=3', {"model.layers": 2, "lr": 0.1, "a=b.c": 3}),
        ("hyperparameters.a.b=3", {"model.layers": 2, "lr": 0.1, "a": {"b": 3}}),
    ],
)
def test_override_reaches_key_with_dots(override: str, values: dict[str, Any]) -> None:
    text = DOTTED.replace("2", "{type: const, val: 2}") if ".val=" in override else DOTTED
    assert constants(text, override) == values


def test_override_reaches_key_with_dots_of_template() -> None:
    template = 'hyperparameters: {"model.layers": 2}'
    assert constants(SHORT, "hyperparameters.model.layers=3", template=template) == {
        "model.layers": 3
    }


def test_override_that_fits_two_keys_is_refused_with_both_spellings() -> None:
    text = SHORT + 'hyperparameters: {"model.layers": 2, model: {width: 1}}\n'
    (problem,) = find_problems(text, overrides=["hyperparameters.model.layers=3"])
    assert problem.message == (
        'may mean several keys: write hyperparameters."model.layers" or '
        '"hyperparameters"."model"."layers"'
    )
    nested = {"model.layers": 2, "model": {"width": 1, "layers": 3}}
    assert constants(text, '"hyperparameters"."model"."layers"=3') == nested
    dotted = {"model.layers": 3, "model": {"width": 1}}
    assert constants(text, 'hyperparameters."model.layers"=3') == dotted


def test_place_of_problem_is_path_that_override_takes() -> None:
    text = SHORT + 'hyperparameters: {"a.b": {type: int, minval: 3, maxval: 1}}\n'
    (problem,) = find_problems(text)
    assert problem.path == 'hyperparameters."a.b".maxval'
    parameter = check_config(text, overrides=[f"{problem.path}=9"]).hyperparameters["a.b"]
    assert isinstance(parameter, Int)
    assert parameter.maxval == 9


def test_override_problems_are_reported_with_other_problems() -> None:
    problems = find_problems(SHORT + "labels: 5\n", overrides=["x", "max_restarts=-1"])
    assert [problem.path for problem in problems] == ["labels", "max_restarts", "x"]


def test_template_value_is_blamed_despite_null_of_the_user() -> None:
    text = to_yaml({**LENGTH, "max_restarts": None})
    (problem,) = find_problems(text, template="name: x\nmax_restarts: -1\n")
    assert problem.line is None
    assert problem.hint == "on line 2 of the template"


def test_problem_of_mixed_eras_names_the_template() -> None:
    (problem,) = find_problems(to_yaml(STEP), template="records_per_epoch: 5")
    assert problem.path == "searcher.max_steps"
    assert problem.hint.startswith(
        "records_per_epoch is set by the template; use the fields of one era"
    )
    (problem,) = find_problems(to_yaml(LENGTH), template="batches_per_step: 5")
    assert problem.path == "searcher.max_length"
    assert problem.hint.startswith("batches_per_step is set by the template; ")


SEARCHES: dict[str, dict[str, Any]] = {
    "max_length": {"name": "single"},
    "budget": {"name": "adaptive", "max_length": {"epochs": 1}},
    "length_per_round": PBT,
}


@pytest.mark.parametrize("name", SEARCHES)
def test_search_length_replaces_a_template_length_in_other_units(name: str) -> None:
    searcher = {"metric": "loss", **SEARCHES[name], name: {"epochs": 3}}
    template = to_yaml({"searcher": {"name": searcher["name"], name: {"batches": 700}}})
    text = to_yaml(change_fields(IN_EPOCHS, {"searcher": searcher}))
    length = check_config(text, template=template).lengths()["searcher", name]
    assert (length.unit, length.count) == ("epochs", 3)


@pytest.mark.parametrize("name", ["min_validation_period", "min_checkpoint_period"])
def test_period_replaces_a_template_period_in_other_units(name: str) -> None:
    text = to_yaml(change_fields(IN_EPOCHS, {name: {"epochs": 3}}))
    length = check_config(text, template=to_yaml({name: {"batches": 700}})).lengths()[name,]
    assert (length.unit, length.count) == ("epochs", 3)
