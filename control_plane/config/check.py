"""The check of a configuration: reading, merging and validating the layers.

The layers are the user's file with the overrides, the template, the cluster's settings and the
defaults of the era, the uppermost first. A failed check reports all problems together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from control_plane.actors.records import JobKind, SnapshotSettings
from control_plane.config.command import COMMAND_SETTINGS, command_layer
from control_plane.config.consistency import inconsistencies
from control_plane.config.eras import RULES, Era, EraMixed, EraRules, Tree, era_of
from control_plane.config.experiment import ExperimentConfig, scope_of_tree, validate_config
from control_plane.config.generated_names import seeded_words
from control_plane.config.images import replace_determined_images
from control_plane.config.masks import mask_findings
from control_plane.config.merge import apply_override, merge_trees
from control_plane.config.misplaced_fields import with_section_hint
from control_plane.config.notebook import notebook_layer, notebook_program
from control_plane.config.other_files import find_other_file
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.config.registry_login import drop_foreign_login
from control_plane.config.run_limits import RunLimits, take_limits
from control_plane.config.section import findings_of
from control_plane.config.shell import SHELL_PROGRAM, find_program
from control_plane.config.snapshots import take_snapshots
from control_plane.config.stated_fields import stated_fields_of
from control_plane.config.storage import default_storage
from control_plane.config.template import Template, mask_problems, read_template
from control_plane.config.training import SEED_MAX
from control_plane.config.yaml_document import SourcePlace, line_of, parse_document
from control_plane.findings import Finding, Loc, path_text


def check_config(
    text: str,
    *,
    template: str | Template | None = None,
    cluster: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    seed_default: int = 0,
    kind: JobKind = JobKind.EXPERIMENT,
    accepts_masks: bool = False,
) -> ExperimentConfig:
    """Return the checked configuration of the user's YAML over template, cluster and defaults.

    Args:
        text: the user's YAML. An empty text is an empty layer.
        template: the template below the user's layer, as YAML or already read. None: no template.
        cluster: the cluster's layer, below the template. None: no settings.
        overrides: assignments `a.b.c=VALUE` with VALUE in YAML, set in the user's layer in order.
        seed_default: the experiment's seed if no layer has one, modulo 2**31. The seed default
            also determines the generated name.
        kind: the kind of job. Layers of commands, notebooks and shells are converted to those of
            an experiment, and have no problems of the section `searcher`.
        accepts_masks: whether a mask, as printed in place of a secret, is valid as the secret. Only
            for configurations that no trial runs with.

    Raises:
        ConfigInvalid: the configuration has problems. The error contains all problems that were
            found, sorted by line. Unreadable YAML, another kind of file and mixed eras end the
            check before values are validated.
    """
    layers = read_layers(text, template=template, cluster=cluster, overrides=overrides)
    if not accepts_masks:
        layers = layers.with_masks_found()
    if kind is not JobKind.EXPERIMENT:
        layers = _to_command_layers(layers, kind)
    elif other := find_other_file([layers.user, layers.template.tree, layers.cluster]):
        raise layers.refusal([other])
    try:
        era = era_of([layers.user, layers.template.tree, layers.cluster])
    except EraMixed as error:
        raise layers.refusal([layers.name_source(error.finding, error.other)]) from None
    tree = layers.merge_layers(RULES[era], seed_default % (SEED_MAX + 1))
    config, findings = _validate_sections(tree, era)
    if kind is not JobKind.EXPERIMENT:
        # Users of commands wrote no searcher. command_layer reports the entrypoint as the cause.
        findings = [finding for finding in findings if finding.loc[:1] != ("searcher",)]
    if findings or layers.findings or layers.other_problems:
        raise layers.refusal(findings, tree)
    return config


def _to_command_layers(layers: Layers, kind: JobKind) -> Layers:
    """Convert the layers of a command, notebook or shell to the layers of an experiment.

    The result has the search of a single trial in the cluster's layer, and the program of a
    notebook or shell as the entrypoint. The limits of the run and the section `snapshots` are taken
    out (`find_run_limits`, `find_snapshots`). Fields that the kind of job cannot have are added to
    the findings.
    """
    findings: list[Finding] = []
    program: list[str] = []
    if kind is JobKind.NOTEBOOK:
        layers, program, findings = _take_idle_settings(layers)
    layers, wrong = _drop_run_fields(layers, kind)
    cluster: Tree = merge_trees(COMMAND_SETTINGS, layers.cluster, RULES[Era.LENGTH])
    if kind is JobKind.NOTEBOOK:
        cluster = {**cluster, "entrypoint": program}
    elif kind is JobKind.SHELL:
        findings = [*find_program(layers.user), *find_program(layers.template.tree)]
        cluster = {**cluster, "entrypoint": list(SHELL_PROGRAM)}
    user, own = command_layer(layers.user)
    template, below = command_layer(layers.template.tree)
    return replace(
        layers,
        user=user,
        template=replace(layers.template, tree=template),
        cluster=cluster,
        findings=(*layers.findings, *findings, *wrong, *own, *below),
    )


def _drop_run_fields(layers: Layers, kind: JobKind) -> tuple[Layers, list[Finding]]:
    """Return the layers without the fields that only runs have, and a finding for each wrong field.

    The fields are the limits of the run and the section `snapshots`.
    """
    trees = layers.user, layers.template.tree, layers.cluster
    rest, _, wrong_limits = take_limits(trees)
    (user, below, cluster), _, wrong = take_snapshots(rest, kind)
    template = replace(layers.template, tree=below)
    layers = replace(layers, user=user, template=template, cluster=cluster)
    return layers, [*wrong_limits, *wrong]


def _take_idle_settings(layers: Layers) -> tuple[Layers, list[str], list[Finding]]:
    """Move the idle settings of a notebook from the layers into the options of the program.

    Return the layers without idle settings, the words of the program, and the findings: invalid
    idle settings and entrypoints that notebooks cannot have.
    """
    user, idle, own = notebook_layer(layers.user)
    template, idle_below, below = notebook_layer(layers.template.tree)
    cluster, idle_default, _ = notebook_layer(layers.cluster)
    program, wrong = notebook_program((idle, idle_below, idle_default))
    below_user = replace(layers.template, tree=template)
    rest = replace(layers, user=user, template=below_user, cluster=cluster)
    return rest, program, [*own, *below, *wrong]


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a configuration, and the origins of values for messages."""

    user: Tree
    """The user's fields with the overrides applied."""
    template: Template
    cluster: Tree
    place: SourcePlace
    """The lines of the user's fields."""
    overridden_locs: tuple[Loc, ...]
    """The paths that overrides have set; () for an override without a valid path."""
    findings: tuple[Finding, ...]
    """The findings about the user's layer so far."""
    other_problems: tuple[Problem, ...]
    """The problems of the template and the overrides so far."""

    def merge_layers(self, rules: EraRules, seed: int) -> Tree:
        """Return the fields of all layers, merged over the defaults of the era.

        Upper layers come first. The cluster's checkpoint store is left out if an upper layer sets
        its own, and an inherited registry login if the image is in another registry. Determined's
        images are replaced by the cluster's images, if any. The layers are not changed.

        Args:
            rules: the rules of the configuration's era.
            seed: the experiment's seed if no layer has one. Also determines the generated name.
        """
        cluster = default_storage(self.cluster, (self.user, self.template.tree))
        layers = self.user, self.template.tree, cluster
        tree: Tree = merge_trees(self.user, merge_trees(self.template.tree, cluster, rules), rules)
        tree = drop_foreign_login(tree, layers)
        words = seeded_words(seed)
        generated = {
            "reproducibility": {"experiment_seed": seed},
            rules.generated_name: words if rules.era is Era.LENGTH else f"Experiment ({words})",
        }
        # In the step era, a null hides a template's value, but must not hide a default.
        shown = replace(rules, null_hides=False)
        defaulted: Tree = merge_trees(merge_trees(tree, rules.defaults, shown), generated, shown)
        return replace_determined_images(defaulted, self.cluster)

    def with_masks_found(self) -> Layers:
        """Return the layers with an additional finding or problem for each mask of a secret.

        Masks in the user's layer become findings, masks in the template problems.
        """
        problems = map(_as_template_problem, mask_problems(self.template))
        return replace(
            self,
            findings=(*self.findings, *mask_findings(self.user)),
            other_problems=(*self.other_problems, *problems),
        )

    def name_source(self, finding: Finding, other: Loc | None) -> Finding:
        """Return the finding with a hint that names the layer of the conflicting field `other`.

        Return the finding unchanged if `other` is None or in the user's own file.
        """
        source = "" if other is None else self._source(other, other, is_null=False)
        if other is None or not source:
            return finding
        return replace(finding, hint=f"{path_text(other)} is set by {source}; {finding.hint}")

    def refusal(self, findings: Iterable[Finding], tree: Tree | None = None) -> ConfigInvalid:
        """Return the error with all problems of the layers and of `findings`, sorted by line.

        Problems without a line come last. Equal problems are listed once. A finding about a value
        that already has a reading error is left out.

        Args:
            findings: the findings to add to those of the layers.
            tree: the merged fields, which tell the origin of a value. None before the merge.
        """
        unread = {finding.loc for finding in self.findings}
        unread |= {loc for loc in self.template.unread if not _has_value(self.user, loc)}
        all_findings = [*self.findings, *(item for item in findings if item.loc not in unread)]
        problems = [self._problem(item, tree) for item in all_findings] + [*self.other_problems]
        distinct = {(problem.path, problem.line, problem.message): problem for problem in problems}
        return ConfigInvalid(sorted(distinct.values(), key=_sort_key))

    def _problem(self, finding: Finding, tree: Tree | None) -> Problem:
        """Return a finding as a problem, with the finding's value and the line in the user's file.

        A missing field has the line of the section. For a value from another layer, the hint names
        the layer, and the line is None. For the template, the hint contains the template's line.

        Args:
            tree: the merged fields, which show whether the field is missing. None before the merge.
        """
        line, _ = line_of(self.place, finding.loc)
        below = self._template_loc(finding.loc, tree or {})
        missing = tree is not None and not _has_value(tree, finding.loc)
        is_null = tree is None or _value_at(tree, finding.loc) is None
        source = "" if missing else self._source(finding.loc, below, is_null)
        note = ""
        if source:
            line, note = None, f"set by {source}"
        if source == "the template" or (line is None and not source):
            # A missing field is reported at the line of its section.
            place = self.template.line_of(below)
            note = note if place is None else f"on line {place} of the template"
        hint = "; ".join(filter(None, (finding.hint, note)))
        return Problem(path_text(finding.loc), line, finding.shown_value, finding.message, hint)

    def _template_loc(self, loc: Loc, tree: Tree) -> Loc:
        """Return the path in the template of the value at `loc` in the merged `tree`.

        Return `loc` itself for a path without list entries. The index of a list entry may differ,
        because the merged list begins with the user's entries. Return () for a list entry that is
        not from the template.
        """
        depth = next((n for n, key in enumerate(loc) if isinstance(key, int)), None)
        if depth is None:
            return loc
        entry = _value_at(tree, loc[: depth + 1])
        entries = _value_at(self.template.tree, loc[:depth])
        listed = entries if isinstance(entries, list) else []
        place = next((n for n, one in enumerate(listed) if one is entry), None)
        return () if place is None else (*loc[:depth], place, *loc[depth + 1 :])

    def _source(self, loc: Loc, below: Loc, is_null: bool) -> str:
        """Return the name of the layer that set a value, for a message.

        Return "--config" for an override, "" for the user's file, "the template" or "the cluster".
        Return "" also if no layer has the value.

        Args:
            loc: the path in the merged fields.
            below: the path in the template, or () for a value that is not from the template.
            is_null: whether the merged value is null. Otherwise a null in the user's file did not
                set the value.
        """
        if any(loc[: len(prefix)] == prefix for prefix in self.overridden_locs if prefix):
            return "--config"
        if _has_value(self.user, loc) and (is_null or _value_at(self.user, loc) is not None):
            return ""
        if below and _has_value(self.template.tree, below):
            return "the template"
        return "the cluster" if _has_value(self.cluster, loc) else ""


def read_layers(
    text: str,
    *,
    template: str | Template | None = None,
    cluster: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> Layers:
    """Return the layers of a configuration, with the overrides applied to the user's layer.

    Unreadable values and invalid overrides do not raise an error. The findings and problems of the
    layers contain them. The arguments are those of `check_config`.

    Raises:
        ConfigInvalid: the user's text or the template is not readable YAML, or not a map.
    """
    document = parse_document(text)
    user = _require_map(document.tree)
    lower = template if isinstance(template, Template) else _read_template(template or "")
    places: list[Loc] = []
    problems = [_as_template_problem(problem) for problem in lower.problems]
    for override in overrides:
        user, loc, finding = apply_override(user, override, (lower.tree, cluster or {}))
        places.append(loc)
        if finding:
            hint = "; ".join(filter(None, (finding.hint, "in --config")))
            problems.append(Problem(path_text(finding.loc), None, None, finding.message, hint))
    return Layers(
        user=user,
        template=lower,
        cluster=dict(cluster or {}),
        place=document.place,
        overridden_locs=tuple(places),
        findings=document.findings,
        other_problems=tuple(problems),
    )


def find_stated_fields(
    text: str, template: str | Template | None, overrides: Sequence[str], era: Era
) -> dict[str, object]:
    """Return the fields that the user's text, the overrides and the template set.

    The result is that of `stated_fields_of`. The cluster's layer is left out.

    Args:
        text: the user's YAML.
        template: the template below the text, as YAML or already read. None: no template.
        overrides: assignments `a.b.c=VALUE`.
        era: the era of the configuration.

    Raises:
        ConfigInvalid: the text or the template is not readable YAML, or not a map.
    """
    layers = read_layers(text, template=template, overrides=overrides)
    return stated_fields_of(merge_trees(layers.user, layers.template.tree, RULES[era]))


def find_run_limits(
    text: str,
    *,
    template: str | Template | None = None,
    cluster: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> RunLimits:
    """Return the limits in the checked configuration of a command, notebook or shell.

    The arguments are those of `check_config`, which reports invalid limits.

    Raises:
        ConfigInvalid: the text or the template is not readable YAML, or not a map.
    """
    layers = read_layers(text, template=template, cluster=cluster, overrides=overrides)
    _, limits, _ = take_limits((layers.user, layers.template.tree, layers.cluster))
    return limits


def find_snapshots(
    text: str,
    kind: JobKind,
    *,
    template: str | Template | None = None,
    cluster: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> SnapshotSettings | None:
    """Return the snapshot settings in the checked configuration of a notebook or shell.

    The arguments are those of `check_config`, which reports invalid fields. Return None for a
    command, and if the configuration disables snapshots.

    Raises:
        ConfigInvalid: the text or the template is not readable YAML, or not a map.
    """
    layers = read_layers(text, template=template, cluster=cluster, overrides=overrides)
    _, settings, _ = take_snapshots((layers.user, layers.template.tree, layers.cluster), kind)
    return settings


def _read_template(text: str) -> Template:
    try:
        return read_template(text)
    except ConfigInvalid as error:
        raise ConfigInvalid([_as_template_problem(problem) for problem in error.problems]) from None


def _as_template_problem(problem: Problem) -> Problem:
    """Return a problem of the template for a report about the user's file.

    The line moves into the hint, or into the message of a problem of the whole template, because
    `Problem.line` counts in the user's file.
    """
    if not problem.path:
        place = "" if problem.line is None else f" on line {problem.line}"
        message = f"the template{place}: {problem.message}"
        return Problem("", None, problem.value, message, problem.hint)
    place = "in the template" if problem.line is None else f"on line {problem.line} of the template"
    hint = "; ".join(filter(None, (problem.hint, place)))
    return Problem(problem.path, None, problem.value, problem.message, hint)


def _require_map(tree: object) -> Tree:
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        hint = "like 'entrypoint: model_def:MyTrial'"
        raise ConfigInvalid([Problem("", 1, None, "must be a map of fields", hint)])
    return tree


def _validate_sections(tree: Tree, era: Era) -> tuple[ExperimentConfig, list[Finding]]:
    """Validate the merged fields of a configuration.

    Return the configuration and the findings: errors of single sections and conflicts between
    sections. If a section has an error, the configuration has the section's default instead.
    """
    findings: list[Finding] = []
    try:
        config = validate_config(tree, era)
    except ValidationError as error:
        findings = [with_section_hint(finding) for finding in findings_of(error)]
        refused = frozenset(str(finding.loc[0]) for finding in findings if finding.loc)
        rest = {key: value for key, value in tree.items() if key not in refused}
        config = validate_config(rest, era)
    else:
        refused = frozenset()
    findings += inconsistencies(config, scope_of_tree(tree, era), refused)
    return config, findings


def _has_value(tree: Any, loc: Loc) -> bool:
    return _value_at(tree, loc) is not _NOTHING


def _value_at(tree: Any, loc: Loc) -> Any:
    """Return the value at `loc` in nested maps and lists. Return _NOTHING if no value exists."""
    for key in loc:
        if isinstance(tree, list) and isinstance(key, int):
            if key >= len(tree):
                return _NOTHING
        elif not isinstance(tree, Mapping) or key not in tree:
            return _NOTHING
        tree = tree[key]
    return tree


_NOTHING: Final = object()


def _sort_key(problem: Problem) -> tuple[bool, int, str]:
    return problem.line is None, problem.line or 0, problem.path
