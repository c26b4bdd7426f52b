"""The pages of the reference, and the classes and functions of each page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detcloud.compatibility.names import MODULES, ROOT


@dataclass(frozen=True)
class Subject:
    """A class or function of a page."""

    path: str
    """The path for imports."""
    title: str
    """The heading."""
    is_created: bool = False
    """Whether users create objects of the class, so that the page has the constructor."""
    internal: frozenset[str] = frozenset()
    """Public names of the class that only detcloud itself uses. The page leaves the names out."""
    shows_described: bool = False
    """Whether the page leaves out fields without a docstring."""
    shown: str = ""
    """The path for imports, if it differs from `path`."""
    shows_all: bool = False
    """Whether the page has methods without a docstring, as signatures."""


@dataclass(frozen=True)
class PageSubjects:
    """A page and its subjects."""

    file: str
    """The name in docs/python."""
    title: str
    introduction: str
    scripts: tuple[str, ...]
    """The scripts with the examples."""
    subjects: tuple[Subject, ...]
    records: str = ""
    """A package. Its classes in signatures of earlier pages get an entry if they have none."""


def subjects(
    module: str,
    names: str,
    *,
    prefix: str = "",
    created: str = "",
    described: str = "",
    internal: dict[str, str] | None = None,
) -> tuple[Subject, ...]:
    """Return the subjects of a module.

    Args:
        module: the module that users import.
        names: the names, separated by spaces, in the order of the page.
        prefix: the beginning of the headings, such as `keras.`.
        created: the classes of which users create objects.
        described: the classes with fields that the page leaves out without a docstring.
        internal: the names that the page leaves out, by class.
    """
    hidden = {name: frozenset(words.split()) for name, words in (internal or {}).items()}
    return tuple(
        Subject(
            f"{module}.{name}",
            f"{prefix}{name}",
            name in created.split(),
            hidden.get(name, frozenset()),
            name in described.split(),
        )
        for name in names.split()
    )


_CLIENT = PageSubjects(
    "client.md",
    "detcloud.client",
    """\
The Python client of a cluster. [From Python](../manage.md#from-python) shows a complete script.

Methods return handles: [experiments, trials and checkpoints](experiments.md), and [other
objects](objects.md). A handle has the fields of the cluster's latest answer, and the dictionary
`data` has all of them. `refresh` reads the fields again.

Every method that sends a request raises an [`ApiError`](errors.md#apierror) if the cluster refuses,
and [`Unreachable`](errors.md#unreachable) if the cluster does not answer. The lists below name only
further errors.""",
    ("client.py",),
    subjects("detcloud.client", "Client", created="Client", internal={"Client": "http"}),
)

_EXPERIMENTS = PageSubjects(
    "experiments.md",
    "Experiments, trials and checkpoints",
    """\
The handles that [`Client`](client.md) returns for experiments, trials, checkpoints and logs.""",
    ("client_experiments.py",),
    subjects(
        "detcloud.client",
        "Experiment Trial Checkpoint LogFilter",
        created="LogFilter",
        internal={"Experiment": "data", "Trial": "data", "Checkpoint": "data"},
    )
    + subjects("detcloud.client.log", "LogCursor"),
)

_OBJECTS = PageSubjects(
    "objects.md",
    "Other objects of a cluster",
    """\
The handles that [`Client`](client.md) returns for jobs, models, reports, pools, schedules, agents,
templates, tokens and saved views.""",
    ("client_objects.py",),
    subjects(
        "detcloud.client",
        "Job JobChange Model ModelVersion Report ResourcePool Schedule Agent Slot Template Token",
        internal={"Agent": "act"},
    )
    + subjects("detcloud.client.experiment_view", "ExperimentView"),
)

_RECORDS = PageSubjects(
    "records.md",
    "Records",
    """\
The values that methods of the client accept and return: dictionaries with these keys, or objects
with these fields.""",
    (),
    (),
    records="detcloud.client",
)

_CORE = PageSubjects(
    "core.md",
    "detcloud.core",
    """\
The Core API connects any training code to a trial. [The Core API](../training-api.md#the-core-api)
explains how to write such a script. All calls work without a cluster too.""",
    ("core.py",),
    subjects(
        "detcloud.core",
        "init Context TrainContext CheckpointContext SearcherContext SearcherOperation"
        " PreemptContext DistributedContext ProfilerContext TrialSpec CheckpointReference"
        " AlertLevel Choice DownloadMode EarlyExitReason PreemptMode SearcherMode TensorboardMode",
        created="DistributedContext",
        described="TrialSpec",
        internal={
            "Context": "read_directives loop first_step batch_searcher notice_outcome close",
            "TrainContext": "metric_at close allow_repeats early_exit uploader",
            "CheckpointContext": "store_behind finish store_output is_on_disk output_place",
            "SearcherContext": "is_finished",
            "SearcherOperation": "report_missing_metric report_completed goal",
            "PreemptContext": "is_requested notice request note_stop close",
            "DistributedContext": "background_context",
            "ProfilerContext": "start_measuring stop_measuring",
        },
    ),
)

_PYTORCH = PageSubjects(
    "pytorch.md",
    "detcloud.pytorch",
    """\
A `PyTorchTrial` describes a model and its training, and the `Trainer` trains it. [A PyTorch
trial](../training-api.md#a-pytorch-trial) explains how to write a trial.""",
    ("pytorch.py", "batch_processing.py"),
    subjects(
        "detcloud.pytorch",
        "PyTorchTrial PyTorchTrialContext PyTorchExperimentalContext Trainer init Batch Epoch"
        " DataLoader PyTorchCallback ClipGradsL2Norm ClipGradsL2Value MetricReducer Reducer"
        " LRScheduler StepMode load_trial_from_checkpoint_path CheckpointLoadContext TorchData"
        " data_length reset_parameters adapt_batch_sampler",
        created="Trainer Batch Epoch DataLoader ClipGradsL2Norm ClipGradsL2Value LRScheduler"
        " CheckpointLoadContext",
        internal={
            "PyTorchTrialContext": "batch_mover use_amp profile_training finish_batch close"
            " set_position set_initial_batch",
            "PyTorchCallback": "on_validation_step_start on_validation_step_end on_checkpoint_end",
            "ClipGradsL2Norm": "on_before_optimizer_step",
            "ClipGradsL2Value": "on_before_optimizer_step",
            "CheckpointLoadContext": "wrap_model",
            "DataLoader": "is_share pass_length batches_from share first_batches",
            "Trainer": "training_class",
        },
    )
    + subjects(
        "detcloud.pytorch.batch_process",
        "torch_batch_process TorchBatchProcessor TorchBatchProcessorContext",
        internal={
            "TorchBatchProcessorContext": "report_task_using_checkpoint"
            " report_task_using_model_version"
        },
    )
    + subjects(
        "detcloud.pytorch.data_layer",
        "DataLayer CachedDataset",
        created="DataLayer",
        internal={"CachedDataset": "default_sampler"},
    ),
)

_FRAMEWORKS = PageSubjects(
    "frameworks.md",
    "Adapters of frameworks",
    """\
Adapters for Keras, the Hugging Face Trainer, Lightning and DeepSpeed. [Other
frameworks](../frameworks.md) shows a complete trial of each.""",
    (
        "frameworks_keras.py",
        "frameworks_transformers.py",
        "frameworks_lightning.py",
        "frameworks_deepspeed.py",
    ),
    subjects("detcloud.keras", "DeterminedCallback", prefix="keras.", created="DeterminedCallback")
    + subjects(
        "detcloud.transformers", "DetCallback", prefix="transformers.", created="DetCallback"
    )
    + subjects(
        "detcloud.lightning",
        "TrialCallback DetLogger",
        prefix="lightning.",
        created="TrialCallback DetLogger",
    )
    + subjects(
        "detcloud.deepspeed",
        "DeepSpeedTrial DeepSpeedTrialContext Trainer init ModelParallelUnit"
        " make_data_parallel_mpu make_deepspeed_mpu overwrite_deepspeed_config",
        prefix="deepspeed.",
        created="Trainer ModelParallelUnit",
        internal={"DeepSpeedTrial": "get_batch_length"},
    ),
)

_SEARCHER = PageSubjects(
    "searcher.md",
    "detcloud.searcher",
    """\
Search algorithms of your own, which run outside the cluster. [Custom
searches](../custom-search.md) explains how to write one.""",
    ("searcher.py",),
    subjects(
        "detcloud.searcher",
        "SearchMethod LocalSearchRunner SearchRunner SearcherState Create ValidateAfter Close"
        " Progress Shutdown Operation ExitedReason",
        created="LocalSearchRunner Create ValidateAfter Close Progress Shutdown",
        internal={
            "SearchRunner": "run_experiment",
            "ExitedReason": "from_cluster",
            **dict.fromkeys(
                ("Create", "ValidateAfter", "Close", "Progress", "Shutdown", "Operation"), "fields"
            ),
        },
    ),
)

_ERRORS = PageSubjects(
    "errors.md",
    "Errors",
    """\
All errors that detcloud raises on purpose are `DetcloudError`s. Many are also the matching built-in
exception, so that code can catch `ValueError` or `OSError`.""",
    ("errors.py",),
    subjects("detcloud", "DetcloudError InvalidHP", created="InvalidHP")
    + subjects("detcloud.shared.errors", "InvalidValue InvalidType InvalidCall LeftOutWarning")
    + subjects("detcloud.shared.http", "ApiError Unreachable WayClosed")
    + subjects("detcloud.client", "NoCluster")
    + subjects("detcloud.core", "CheckpointDamaged")
    + subjects("detcloud.storage.store", "StorageError")
    + subjects("detcloud.core.distributed_context", "NoLauncher"),
)


def _determined_subjects(module: str, names: str, created: str = "") -> tuple[Subject, ...]:
    """Return the subjects of a module of Determined, by the tables of the compatibility package.

    Args:
        module: the module below `determined`; empty for `determined` itself.
        names: the names of Determined, separated by spaces.
        created: the classes of which users create objects.
    """
    package = f"{ROOT}.{module}".rstrip(".")
    prefix = module.removeprefix("experimental.") + "." if module else ""
    return tuple(
        Subject(
            MODULES[package].offered[name].replace(":", "."),
            f"{prefix}{name}",
            name in created.split(),
            internal=_COMPATIBILITY_INTERNAL,
            shown=f"{package}.{name}",
            shows_all=True,
        )
        for name in names.split()
    )


_COMPATIBILITY_INTERNAL = frozenset(("instead", "abandon", "batch_searcher", "in_batches"))
_DETERMINED = PageSubjects(
    "determined.md",
    "determined",
    """\
Training code and scripts written for Determined import `determined`. In trials, and in scripts run
by `python -m detcloud.compatibility SCRIPT`, this package is detcloud's. [Coming from
Determined](../migrating.md) explains the differences.

This page has the classes and functions that differ from detcloud's own, and a list of
[all names](#all-names). Functions of `determined.experimental.client` have the names and arguments
of the methods of [`Determined`](#clientdetermined). Objects of this module also have all fields of
[detcloud's handles](experiments.md).""",
    ("determined.py",),
    _determined_subjects(
        "experimental.client",
        "Determined login Experiment Trial Checkpoint CheckpointTrainingMetadata"
        " TrialMetrics Model ModelVersion Workspace Project User",
        created="Determined",
    )
    + _determined_subjects(
        "core", "init Context SearcherContext SearcherOperation DistributedContext Unit"
    )
    + _determined_subjects(
        "", "get_cluster_info ClusterInfo TrialInfo RendezvousInfo ResourcesInfo"
    )
    + _determined_subjects(
        "experimental.core_v2", "init init_context Config alert close", created="Config"
    ),
)

PAGES: Sequence[PageSubjects] = (
    _CLIENT,
    _EXPERIMENTS,
    _OBJECTS,
    _RECORDS,
    _CORE,
    _PYTORCH,
    _FRAMEWORKS,
    _SEARCHER,
    _DETERMINED,
    _ERRORS,
)
