"""The house rules as functions that take a source file and yield all breaches in the file."""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


ROOT = Path(__file__).resolve().parents[3]
PRODUCT = (
    "control_plane",
    "provisioner",
    "lambdas",
    "simulator",
    "local_cluster",
    "relay",
    "harness",
    "infra",
    "images",
)
SCANNED = (*PRODUCT, "bench", "docs_site", "tests", "examples")

LINE_CHARACTERS_MAX = 100
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
PURE_FUNCTION_LINES_MAX = 60

PURE_FOLDERS = tuple(
    f"control_plane/{x}"
    for x in (
        "actors",
        "searchers",
        "scheduling",
        "config",
        "checkpoint_stores/types",
        "metrics",
        "rows",
        "simulation",
        "spot",
    )
)
PURE_FILES = (
    "harness/detcloud/shared/archive_limits.py",
    "harness/detcloud/shared/archive_names.py",
    "control_plane/clock_skew.py",
    "control_plane/errors.py",
    "control_plane/evolve.py",
    "control_plane/field_types.py",
    "control_plane/findings.py",
    "control_plane/paragraphs.py",
    "control_plane/storable_text.py",
    "control_plane/text_forms.py",
    "control_plane/alarms/conditions.py",
    "control_plane/alarms/kinds.py",
    "control_plane/alarms/records.py",
    "control_plane/alarms/runbook.py",
    "control_plane/alarms/thresholds.py",
    "control_plane/alarms/transitions.py",
    "control_plane/checkpoint_gc/ranking.py",
    "control_plane/checkpoint_stores/checkpoint_files.py",
    "control_plane/checkpoint_stores/registry.py",
    "control_plane/checkpoint_stores/store_type.py",
    "control_plane/fleet/gpu_models.py",
    "control_plane/fleet/records.py",
    "control_plane/fleet/type_choice.py",
    "harness/detcloud/shared/articles.py",
    "harness/detcloud/shared/azure_place.py",
    "harness/detcloud/shared/bucket_errors.py",
    "harness/detcloud/shared/bucket_place.py",
    "harness/detcloud/shared/dotted_paths.py",
    "harness/detcloud/shared/errors.py",
    "harness/detcloud/shared/folder_sync/plan.py",
    "harness/detcloud/shared/folder_sync/synced_names.py",
    "harness/detcloud/shared/json_depth.py",
    "harness/detcloud/shared/json_escapes.py",
    "harness/detcloud/shared/launcher_names.py",
    "harness/detcloud/shared/plurals.py",
    "harness/detcloud/shared/proxy_addresses.py",
    "harness/detcloud/shared/shell_names.py",
    "harness/detcloud/shared/line_patterns/automaton.py",
    "harness/detcloud/shared/line_patterns/character_sets.py",
    "harness/detcloud/shared/line_patterns/required_texts.py",
    "harness/detcloud/shared/line_patterns/syntax.py",
    "harness/detcloud/shared/masking.py",
    "harness/detcloud/shared/registries.py",
    "harness/detcloud/shared/unused_settings.py",
    "harness/detcloud/shared/upload_parts.py",
    "control_plane/gcp/zones.py",
    "provisioner/consolidation.py",
    "provisioner/disruptions.py",
    "provisioner/draft_plan.py",
    "provisioner/fleet_capacity.py",
    "provisioner/launch_limits.py",
    "provisioner/launch_need.py",
    "provisioner/launch_plan.py",
    "provisioner/observations.py",
    "provisioner/scale_decider.py",
    "provisioner/markets.py",
    "provisioner/model.py",
    "provisioner/offerings.py",
    "provisioner/overdue_requests.py",
    "provisioner/request_shapes.py",
    "provisioner/sizing.py",
)
# A cloud's section of the configuration, and the tables of instance types for the check.
POOL_PROVIDER = "/pool_provider.py"
SECTIONS = (POOL_PROVIDER, "/machine_sections.py", "/nfs_shares.py")
CATALOGUES = (
    *("/default_image.py", "/default_type.py"),
    *("/instance_types.py", "/machine_prices.py", "/machine_types.py"),
)
PURE_MODULES = tuple(
    path.removesuffix(".py").removeprefix("harness/").replace("/", ".")
    for path in (*PURE_FOLDERS, *PURE_FILES)
)
RANDOMNESS = "control_plane/searchers/randomness.py"
# Registries import the modules of a folder.
REGISTRIES = (
    "control_plane/searchers/registry.py",
    "control_plane/checkpoint_stores/registry.py",
)
# Functions of a store type import the modules that open the store.
STORES = "control_plane.checkpoint_stores"
STORE_TYPES = "control_plane/checkpoint_stores/types/"
CONFIG_PACKAGES = ("pydantic", "pydantic_core", "yaml")
# Bounds of numbers and texts as plain data, which pydantic reads.
DATA_PACKAGES = ("annotated_types",)

# Modules of the standard library that see a clock, chance, the machine or other processes.
IMPURE_MODULES = word_set(
    "time random secrets os io pathlib glob shutil tempfile fileinput socket socketserver ssl "
    "select selectors signal threading multiprocessing concurrent subprocess asyncio sched queue "
    "sqlite3 dbm shelve pickle urllib http smtplib ftplib logging getpass platform pwd importlib "
    "runpy ctypes mmap atexit gc resource contextvars webbrowser zoneinfo locale"
)
PURE_PARTS = ("urllib.parse",)
IMPURE_CALLS = word_set(
    "datetime.now datetime.utcnow datetime.today date.today uuid.uuid1 uuid.uuid4 "
    "sys.stdin sys.stdout sys.stderr sys.argv"
)
IMPURE_NAMES = word_set("uuid1 uuid4")
IMPURE_BUILTINS = word_set("open input print exec eval __import__ breakpoint")

SDK_HOMES = {
    "sqlite3": ("control_plane/state/sqlite.py",),
    # Each cloud has a folder with the cloud's name in each root.
    "boto3": ("aws/", "harness/detcloud/shared/aws.py", "harness/detcloud/shared/s3.py"),
    "botocore": (
        "aws/",
        "harness/detcloud/shared/aws.py",
        "harness/detcloud/shared/s3.py",
        "harness/detcloud/shared/s3_client.py",
        "harness/detcloud/shared/s3_errors.py",
    ),
    "optuna": ("control_plane/suggestions/model.py",),
    "google": (
        "gcp/",
        "harness/detcloud/shared/gcs.py",
        "harness/detcloud/shared/gcs_errors.py",
        "harness/detcloud/shared/gcs_signing.py",
        "harness/detcloud/shared/gcs_versions.py",
        "harness/detcloud/shared/google_credentials.py",
        "harness/detcloud/shared/google_packages.py",
    ),
    "azure": ("harness/detcloud/shared/azure.py",),
    "asyncssh": ("detcloud/launch/ssh/",),
    "urllib3": ("gcp/",),
    # Each framework of training code has a single adapter.
    "keras": ("harness/detcloud/keras.py",),
    "transformers": ("harness/detcloud/transformers.py",),
    "lightning": ("detcloud/lightning/",),
    "pytorch_lightning": ("detcloud/lightning/",),
    "deepspeed": ("detcloud/deepspeed/",),
}
# Each cloud has a folder with the cloud's name in each root; `local` is no cloud.
CLOUDS = tuple(
    sorted({path.parent.name for path in ROOT.glob(f"control_plane/*{POOL_PROVIDER}")} - {"local"})
)
# The only modules outside a cloud's folders that may import or name modules there.
CLOUD_REGISTRATIONS = ("control_plane/config/provider_types.py", "infra/clouds.py")
# Code that the folders of a cloud share is in the folder of shared code.
CLOUDS_SHARED = "harness/detcloud/shared/"
_MODULE_PATH = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)+")
SERVER_PACKAGES = (
    "control_plane",
    "provisioner",
    "lambdas",
    "simulator",
    "local_cluster",
    "relay",
    "infra",
)
VAGUE_NAMES = word_set("util utils helper helpers common manager managers misc")
# Packages with names that code for Determined imports.
FOREIGN_PACKAGES = frozenset({"determined_common"})
# The words are split so that this file keeps the rule.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|NotImplemented" + r"Error)\b")


@dataclass(frozen=True)
class Source:
    """A Python file: the path from the root of the repository, and the text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree, from the outside in. Several rules walk over the tree."""
        return tuple(ast.walk(self.tree))

    def forget_tree(self) -> None:
        """Free the memory of the tree. The next use parses the file again."""
        for name in ("tree", "nodes"):
            self.__dict__.pop(name, None)

    @property
    def is_product(self) -> bool:
        return self.path.split("/")[0] in PRODUCT

    @property
    def is_pure(self) -> bool:
        # A package's entry point is the edge of the package: the entry point reads files and
        # prints.
        inside = self.path.startswith(tuple(f"{x}/" for x in PURE_FOLDERS))
        named = self.path in PURE_FILES or self.path.endswith((*SECTIONS, *CATALOGUES))
        return named or (inside and not self.path.endswith("/__main__.py"))

    def functions(self) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
        """Yield all functions with lengths in lines, without decorators."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node, (node.end_lineno or node.lineno) - node.lineno + 1

    def imports(self) -> Iterator[tuple[ast.stmt, str]]:
        """Yield the absolute dotted names of all imported modules, also of imports in functions."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                module = self._absolute(node)
                # `from package import module` imports the module too.
                yield from ((node, f"{module}.{alias.name}") for alias in node.names)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        folders = PurePosixPath(self.path.removeprefix("harness/")).parts[: -node.level]
        return ".".join((*folders, *([node.module] if node.module else [])))


Rule = Callable[[Source], Iterator[str]]


def sources(root: Path = ROOT) -> list[Source]:
    """Return all Python files that the rules apply to, sorted by path."""
    paths = (path for folder in SCANNED for path in (root / folder).rglob("*.py"))
    return [
        Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(paths)
    ]


def breaches(rule: Rule, files: list[Source]) -> list[str]:
    return [f"{file.path}:{breach}" for file in files for breach in rule(file)]


def lines_are_short(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > LINE_CHARACTERS_MAX:
            yield f"{number}: {len(line)} characters, the limit is {LINE_CHARACTERS_MAX}"


def files_are_short(source: Source) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"1: {lines} lines, the limit is {FILE_LINES_MAX}"


def functions_are_short(source: Source) -> Iterator[str]:
    limit = PURE_FUNCTION_LINES_MAX if source.is_pure else FUNCTION_LINES_MAX
    for node, lines in source.functions():
        if lines > limit:
            yield f"{node.lineno}: {node.name} has {lines} lines, the limit is {limit}"


def modules_say_what_they_are(source: Source) -> Iterator[str]:
    if source.path.split("/")[0] not in ("tests", "examples") and not ast.get_docstring(
        source.tree
    ):
        yield "1: the module has no docstring"


def names_are_nouns_of_the_domain(source: Source) -> Iterator[str]:
    for part in PurePosixPath(source.path).with_suffix("").parts:
        words = part.split("_")
        if part in FOREIGN_PACKAGES:
            continue
        if part in VAGUE_NAMES or words[-1] in VAGUE_NAMES:
            yield f"1: {part!r} is too vague: name the content"


def nothing_is_left_unfinished(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := UNFINISHED.search(line):
            yield f"{number}: {found.group()}"


def no_exception_is_caught_blindly(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{node.lineno}: bare except"


def pure_folders_import_nothing_impure(source: Source) -> Iterator[str]:
    if not source.is_pure:
        return
    for node, name in source.imports():
        if not _may_import(source, name):
            yield f"{node.lineno}: a pure module imports {name}"


def _may_import(source: Source, name: str) -> bool:
    top = name.split(".")[0]
    if _within(name, PURE_PARTS) or _within(name, PURE_MODULES):
        return True
    tables = {path.strip("/").removesuffix(".py") for path in (*SECTIONS, *CATALOGUES)}
    if tables & set(name.split(".")):
        return True
    if (source.path, top) == (RANDOMNESS, "random"):
        return True
    if source.path in REGISTRIES and top == "importlib":
        return True
    if source.path.startswith(STORE_TYPES) and _within(name, (STORES,)):
        return True
    if top in sys.stdlib_module_names or top in DATA_PACKAGES:
        return top not in IMPURE_MODULES
    is_config = source.path.startswith(("control_plane/config/", STORE_TYPES))
    return top in CONFIG_PACKAGES and (is_config or source.path.endswith(SECTIONS))


def pure_folders_see_no_clock_and_no_chance(source: Source) -> Iterator[str]:
    if not source.is_pure:
        return
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and _is_impure_call(source, node):
            yield f"{node.lineno}: a pure module uses {ast.unparse(node)}"
        elif isinstance(node, ast.Name) and node.id in IMPURE_NAMES | IMPURE_BUILTINS:
            yield f"{node.lineno}: a pure module uses {node.id}"
        elif isinstance(node, ast.ImportFrom) and node.module == "random":
            yield f"{node.lineno}: import the module random, so that only random.Random is used"


def _is_impure_call(source: Source, node: ast.Attribute) -> bool:
    dotted = ast.unparse(node)
    if dotted.startswith("random."):
        return dotted != "random.Random"
    return ".".join(dotted.split(".")[-2:]) in IMPURE_CALLS


def each_sdk_has_one_home(source: Source) -> Iterator[str]:
    if not source.is_product:
        return
    for node, name in source.imports():
        homes = SDK_HOMES.get(name.split(".")[0])
        if homes is not None and not _is_home(source.path, homes):
            yield f"{node.lineno}: {name} is imported outside {', '.join(homes)}"


def each_cloud_stays_in_its_folders(source: Source) -> Iterator[str]:
    if not source.is_product or source.path.startswith((CLOUDS_SHARED, *CLOUD_REGISTRATIONS)):
        return
    homes = PurePosixPath(source.path).parts[:-1]
    for line, name in (*_imported_lines(source), *_module_paths(source)):
        # An SDK may have modules for a second cloud, as google.auth.aws; `each_sdk_has_one_home`
        # checks the imports of SDKs.
        if name.split(".")[0] in SDK_HOMES:
            continue
        for cloud in (cloud for cloud in CLOUDS if cloud in name.split(".")):
            if cloud not in homes:
                yield f"{line}: {name} is of the cloud {cloud}, and is named outside its folders"


def _imported_lines(source: Source) -> Iterator[tuple[int, str]]:
    return ((node.lineno, name) for node, name in source.imports())


def _module_paths(source: Source) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of literals that may name modules of the project."""
    ours = (*SERVER_PACKAGES, "detcloud")
    constants = (node for node in source.nodes if isinstance(node, ast.Constant))
    for node in constants:
        text = node.value
        if isinstance(text, str) and _MODULE_PATH.fullmatch(text) and _within(text, ours):
            yield node.lineno, text


def torch_stays_in_its_folder(source: Source) -> Iterator[str]:
    if not source.is_product or source.path.startswith("harness/detcloud/pytorch/"):
        return
    lazy = source.path.startswith("harness/detcloud/core/distributed")
    for node, name in source.imports():
        if _within(name, ("torch",)) and not (lazy and _is_in_function(source, node)):
            yield f"{node.lineno}: torch is imported outside detcloud/pytorch"


def _is_in_function(source: Source, node: ast.AST) -> bool:
    return any(child is node for outer, _ in source.functions() for child in ast.walk(outer))


def detcloud_never_imports_the_server(source: Source) -> Iterator[str]:
    if not source.path.startswith("harness/"):
        return
    for node, name in source.imports():
        if _within(name, SERVER_PACKAGES):
            yield f"{node.lineno}: detcloud imports {name}"


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _is_home(path: str, homes: tuple[str, ...]) -> bool:
    """Return whether a home is the file, or, with a final slash, a folder above the file."""
    return any(path == home or (home.endswith("/") and f"/{home}" in path) for home in homes)


RULES: tuple[Rule, ...] = (
    lines_are_short,
    files_are_short,
    functions_are_short,
    modules_say_what_they_are,
    names_are_nouns_of_the_domain,
    nothing_is_left_unfinished,
    no_exception_is_caught_blindly,
    pure_folders_import_nothing_impure,
    pure_folders_see_no_clock_and_no_chance,
    each_sdk_has_one_home,
    each_cloud_stays_in_its_folders,
    torch_stays_in_its_folder,
    detcloud_never_imports_the_server,
)
