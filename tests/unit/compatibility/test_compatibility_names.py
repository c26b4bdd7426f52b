import ast
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from detcloud import DetcloudError, pytorch
from detcloud.compatibility import path
from detcloud.compatibility.modules import UnsupportedName, _Finder
from detcloud.compatibility.names import FORMER_ROOT, MODULES, ROOT
from detcloud.pytorch.event_files import TorchWriter
from detcloud.pytorch.hooks import Hooks

# Attributes of core_v2 that are None before core_v2.init.
OF_CORE_V2 = {"checkpoint", "distributed", "info", "preempt", "searcher", "train"}
PUBLIC = json.loads(Path(__file__).with_name("public_names.json").read_text())
# Modules that import a framework for seconds; separate tests import these modules.
FRAMEWORKS = ("detcloud.keras", "detcloud.transformers", "detcloud.lightning", "detcloud.deepspeed")
FRAMEWORK_NAMES = {
    module: {name for name, place in names.offered.items() if place.partition(":")[0] in FRAMEWORKS}
    for module, names in MODULES.items()
}


@pytest.fixture(autouse=True)
def package_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the package `determined` on the path, as in a trial; unload its modules afterwards."""
    monkeypatch.syspath_prepend(path.FOLDER)
    yield
    sys.meta_path[:] = [protocol for protocol in sys.meta_path if not isinstance(protocol, _Finder)]
    for name in [text for text in sys.modules if text.partition(".")[0] in (ROOT, FORMER_ROOT)]:
        del sys.modules[name]


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_exist_or_name_a_replacement(module: str) -> None:
    imported = importlib.import_module(module)
    for name in PUBLIC[module]:
        if name in FRAMEWORK_NAMES.get(module, ()):
            continue
        try:
            assert _is_there(imported, name), name
        except UnsupportedName as error:
            sentence = str(error)
            assert sentence.startswith(f"{module}.{name} is not supported by detcloud: "), sentence
            assert sentence.endswith("."), sentence


@pytest.mark.parametrize("module", MODULES)
def test_offered_names_exist(module: str) -> None:
    imported = importlib.import_module(module)
    for name in MODULES[module].offered.keys() - FRAMEWORK_NAMES.get(module, ()):
        assert _is_there(imported, name), name
    assert not MODULES[module].offered.keys() & MODULES[module].missing.keys()


def _is_there(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    return value is not None or (module.__name__.endswith("core_v2") and name in OF_CORE_V2)


def test_determineds_trial_class_is_detclouds_class() -> None:
    scope: dict[str, Any] = {}
    exec("from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial, TorchData", scope)
    assert scope["PyTorchTrial"] is pytorch.PyTorchTrial
    exec("import determined as det\nfrom determined import core, pytorch as theirs", scope)
    assert scope["theirs"].samplers.SkipSampler is not None
    assert scope["det"].core is scope["core"]
    exec("from determined.pytorch import *", scope)


def test_framework_names_are_defined_by_the_adapters() -> None:
    for module, wanted in FRAMEWORK_NAMES.items():
        for name in wanted:
            place, _, attribute = MODULES[module].offered[name].partition(":")
            # The source is parsed, since an import would first run the parent packages.
            source = Path(pytorch.__file__).parents[1].joinpath(*place.split(".")[1:])
            file = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
            body = ast.parse(file.read_text()).body
            imported = [
                alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names
            ]
            classes = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
            defined = {item.name for item in (*imported, *classes)}
            assert attribute in defined, f"{module}.{name}"
    # Keras, transformers and lightning have a name each, deepspeed has eight.
    assert len({name for names in FRAMEWORK_NAMES.values() for name in names}) == 11


def test_missing_names_are_import_errors_with_an_explanation() -> None:
    with pytest.raises(ImportError, match=r"TFKerasTrial is not supported.*detcloud\.keras"):
        exec("from determined.keras import TFKerasTrial")
    with pytest.raises(UnsupportedName, match=r"load is not supported.*loop is your own"):
        exec("from determined import load, workload")
    with pytest.raises(ModuleNotFoundError, match=r"determined\.nonsense is not a module"):
        exec("import determined.nonsense")
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from determined.pytorch import nonsense")


def test_torch_writer_is_importable_from_determineds_module() -> None:
    scope: dict[str, Any] = {}
    exec("from determined.tensorboard.metric_writers.pytorch import TorchWriter", scope)
    assert scope["TorchWriter"] is TorchWriter
    exec("from determined.pytorch import MetricReducer, load_trial_from_checkpoint_path", scope)
    assert scope["MetricReducer"] is pytorch.MetricReducer


def test_private_modules_have_the_names_of_their_package() -> None:
    scope: dict[str, Any] = {}
    exec("from determined._info import ClusterInfo, get_cluster_info", scope)
    exec("from determined.core._context import Context, init", scope)
    exec("from determined.pytorch._data import DataLoader, to_device", scope)
    exec("from determined.searcher.search_method import Create, SearchMethod", scope)
    exec("import determined as det\nfrom determined import core", scope)
    assert scope["get_cluster_info"] is scope["det"].get_cluster_info
    assert scope["init"] is scope["core"].init
    assert scope["DataLoader"] is pytorch.DataLoader


def test_private_names_of_determineds_examples_exist() -> None:
    scope: dict[str, Any] = {}
    exec("from determined.pytorch import PyTorchCallback, Reducer, _Data, _SimpleReducer", scope)
    exec("from determined.pytorch._reducer import _simple_reduce_metrics as reduce", scope)
    assert issubclass(scope["PyTorchCallback"], pytorch.PyTorchCallback)
    reducer = scope["_SimpleReducer"](sum)
    reducer.update(2)
    assert reducer.cross_slot_reduce([reducer.per_slot_reduce(), [5]]) == 7
    reduce, kinds = scope["reduce"], scope["Reducer"]
    assert reduce(kinds.AVG, metrics=[1.0, 4.0], num_batches=[2, 1]) == 2
    assert [reduce(kind, [[1], [4]]) for kind in kinds] == [2.5, 5, 4, 1]


def test_determineds_errors_can_be_raised_and_caught() -> None:
    scope: dict[str, Any] = {}
    exec("import determined as det\nfrom determined import errors", scope)
    errors = scope["det"].errors
    with pytest.raises(errors.InvalidExperimentException, match="no images"):
        raise errors.InvalidConfigurationException({"a": 1}, "no images")
    with pytest.raises(DetcloudError, match="invalid data type str: not text"):
        raise errors.InvalidDataTypeException(str, "not text")


def test_determineds_callbacks_get_folders_as_strings(tmp_path: Path) -> None:
    callback_class: Any = importlib.import_module("determined.pytorch").PyTorchCallback
    written: list[str] = []

    class Theirs(callback_class):  # type: ignore[misc]
        def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
            written.append(checkpoint_dir + "/extra.txt")

    class Ours(pytorch.PyTorchCallback):
        def on_checkpoint_write_end(self, checkpoint_dir: Path) -> None:
            written.append((checkpoint_dir / "more.txt").name)

    hooks = Hooks({"theirs": Theirs(), "ours": Ours()})
    hooks.call(pytorch.PyTorchCallback.on_checkpoint_write_end, tmp_path)
    assert written == [f"{tmp_path}/extra.txt", "more.txt"]


def test_names_of_internal_modules_are_explained_on_use() -> None:
    scope: dict[str, Any] = {}
    exec("from determined import gpu\nimport determined.common.api.logs as logs", scope)
    with pytest.raises(UnsupportedName, match=r"gpu\.get_gpu_uuids is not supported.*machinery"):
        scope["gpu"].get_gpu_uuids()
    with pytest.raises(UnsupportedName, match=r"logs\.trial_logs .*detcloud\.Client"):
        scope["logs"].trial_logs  # noqa: B018
    # Private names raise a plain AttributeError, as tools expect.
    assert not hasattr(scope["gpu"], "_private")


def test_determined_common_has_the_names_of_determined() -> None:
    former = {name for name in MODULES if name.partition(".")[0] == FORMER_ROOT}
    assert {f"{FORMER_ROOT}.{name}" for name in ("check", "util", "api", "experimental")} <= former
    for name in former:
        assert MODULES[name] is MODULES[name.replace(FORMER_ROOT, f"{ROOT}.common", 1)]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("determined.searcher.core_search_runner.CoreSearchRunner", "run a LocalSearchRunner"),
        ("determined.exec.launch.launch", "it belonged to Determined's own machinery"),
        ("determined.cli.main", "use detcloud.Client or the detcloud command"),
        ("determined_common.api.Session", "a trial holds no credential of the cluster"),
    ],
)
def test_names_of_determineds_programs_name_a_replacement(name: str, instead: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.raises(UnsupportedName, match=instead):
        getattr(importlib.import_module(module), attribute)


def test_unknown_modules_are_module_not_found_errors() -> None:
    for name in ("determined._data_layer", "determined.load", "determined_common.schemas"):
        with pytest.raises(ModuleNotFoundError, match=f"{name} is not a module of detcloud's"):
            importlib.import_module(name)
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from determined import nothing", {})


def test_private_core_module_of_0_17_has_its_names() -> None:
    scope: dict[str, Any] = {}
    exec("from determined import _core, core", scope)
    exec("from determined._core._searcher import SearcherOp", scope)
    assert scope["SearcherOp"] is scope["core"].SearcherOperation
    assert scope["_core"].Training is scope["core"].TrainContext
    assert scope["_core"].DummyCheckpointing is scope["core"].CheckpointContext


def test_horovod_is_imported_on_use() -> None:
    scope: dict[str, Any] = {}
    exec("from determined.horovod import hvd", scope)
    with pytest.raises(ImportError, match=r"hvd\.size needs Horovod, .* context\.distributed"):
        scope["hvd"].size()
    with pytest.raises(ValueError, match="'mxnet': expected one of torch, tensorflow"):
        scope["hvd"].require_horovod_type("mxnet", "the test")
