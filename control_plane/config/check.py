"""Checks a configuration: reads, lays over, validates, and reports every problem at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from control_plane.config.consistency import inconsistencies
from control_plane.config.eras import RULES, Era, EraMixed, EraRules, Tree, era_of
from control_plane.config.experiment import ExperimentConfig, scope_of_tree, validated
from control_plane.config.images import giving_way
from control_plane.config.merge import merged, overridden
from control_plane.config.names import three_words
from control_plane.config.problems import ConfigInvalid, Finding, Loc, Problem, path_text
from control_plane.config.registry_login import without_strayed_login
from control_plane.config.section import findings_of
from control_plane.config.template import Template, read_template
from control_plane.config.training import SEED_MAX
from control_plane.config.yaml_document import Place, line_of, parse


def check(
    text: str,
    *,
    template: str | None = None,
    cluster: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    seed_default: int = 0,
) -> ExperimentConfig:
    """Check the user's YAML, laid over the template, the cluster's settings and the defaults.

    `overrides` are `a.b.c=VALUE` (VALUE in YAML), set in the user's part. `seed_default` becomes
    the experiment's seed where none is given, and chooses its generated name.

    Raises:
        ConfigInvalid: with every problem, sorted by line.
    """
    layers = read_layers(text, template=template, cluster=cluster, overrides=overrides)
    try:
        era = era_of([layers.user, layers.template.tree, layers.cluster])
    except EraMixed as error:
        raise layers.refusal([error.finding]) from None
    tree = layers.merged(RULES[era], seed_default % (SEED_MAX + 1))
    config, findings = _validated(tree, era)
    if findings or layers.findings or layers.other_problems:
        raise layers.refusal(findings, tree)
    return config


@dataclass(frozen=True, slots=True)
class Layers:
    """The parts of a configuration, and what is needed to say where a value came from."""

    user: Tree
    template: Template
    cluster: Tree
    place: Place
    overridden: tuple[Loc, ...]
    findings: tuple[Finding, ...]
    other_problems: tuple[Problem, ...]

    def merged(self, rules: EraRules, seed: int) -> Tree:
        """All layers over the defaults of the era."""
        layers = self.user, self.template.tree, self.cluster
        tree: Tree = merged(self.user, merged(self.template.tree, self.cluster, rules), rules)
        tree = without_strayed_login(tree, layers)
        words = three_words(seed)
        generated = {
            "reproducibility": {"experiment_seed": seed},
            rules.generated_name: words if rules.era is Era.LENGTH else f"Experiment ({words})",
        }
        # No null hides a default.
        shown = replace(rules, null_hides=False)
        defaulted: Tree = merged(merged(tree, rules.defaults, shown), generated, shown)
        return giving_way(defaulted, self.cluster)

    def refusal(self, findings: Iterable[Finding], tree: Tree | None = None) -> ConfigInvalid:
        """Every problem, located; a value that could not be read is not judged twice."""
        unread = {finding.loc for finding in self.findings}
        unread |= {loc for loc in self.template.unread if not _holds(self.user, loc)}
        all_findings = [*self.findings, *(it for it in findings if it.loc not in unread)]
        problems = [self._problem(it, tree) for it in all_findings] + [*self.other_problems]
        distinct = {(it.path, it.line, it.message): it for it in problems}
        return ConfigInvalid(sorted(distinct.values(), key=_order))

    def _problem(self, finding: Finding, tree: Tree | None) -> Problem:
        line, whole = line_of(self.place, finding.loc)
        below = self._loc_below(finding.loc, tree or {})
        missing = tree is not None and not _holds(tree, finding.loc)
        source = "" if missing else self._source(finding.loc, below)
        note = ""
        if source and (not whole or source == "--config"):
            line, note = None, f"set by {source}"
        if source == "the template" or (line is None and not source):
            # What is missing is missed where the rest of its section stands.
            place = self.template.line_of(below)
            note = note if place is None else f"on line {place} of the template"
        hint = "; ".join(filter(None, (finding.hint, note)))
        return Problem(path_text(finding.loc), line, finding.value, finding.message, hint)

    def _loc_below(self, loc: Loc, tree: Tree) -> Loc:
        """The place in the template, where the user's entries of a list are not counted; () for an
        entry that is not the template's.
        """
        depth = next((n for n, key in enumerate(loc) if isinstance(key, int)), None)
        if depth is None:
            return loc
        entry = _at(tree, loc[: depth + 1])
        entries = _at(self.template.tree, loc[:depth])
        listed = entries if isinstance(entries, list) else []
        place = next((n for n, one in enumerate(listed) if one is entry), None)
        return () if place is None else (*loc[:depth], place, *loc[depth + 1 :])

    def _source(self, loc: Loc, below: Loc) -> str:
        if any(loc[: len(prefix)] == prefix for prefix in self.overridden if prefix):
            return "--config"
        if _holds(self.user, loc):
            return ""
        if below and _holds(self.template.tree, below):
            return "the template"
        return "the cluster" if _holds(self.cluster, loc) else ""


def read_layers(
    text: str,
    *,
    template: str | None = None,
    cluster: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> Layers:
    """Read every part; ConfigInvalid if one is no map at all."""
    document = parse(text)
    user = _map(document.tree)
    lower = _read_template(template or "")
    places: list[Loc] = []
    problems = [_of_template(problem) for problem in lower.problems]
    for override in overrides:
        user, loc, finding = overridden(user, override)
        places.append(loc)
        if finding:
            hint = "; ".join(filter(None, (finding.hint, "in --config")))
            problems.append(Problem(path_text(finding.loc), None, None, finding.message, hint))
    return Layers(
        user=user,
        template=lower,
        cluster=dict(cluster or {}),
        place=document.place,
        overridden=tuple(places),
        findings=document.findings,
        other_problems=tuple(problems),
    )


def _read_template(text: str) -> Template:
    try:
        return read_template(text)
    except ConfigInvalid as error:
        raise ConfigInvalid([_of_template(problem) for problem in error.problems]) from None


def _of_template(problem: Problem) -> Problem:
    """A problem as the reader of the user's file sees it, whose lines are others."""
    if not problem.path:
        place = "" if problem.line is None else f" on line {problem.line}"
        message = f"the template{place}: {problem.message}"
        return Problem("", None, problem.value, message, problem.hint)
    place = "in the template" if problem.line is None else f"on line {problem.line} of the template"
    hint = "; ".join(filter(None, (problem.hint, place)))
    return Problem(problem.path, None, problem.value, problem.message, hint)


def _map(tree: object) -> Tree:
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        hint = "like 'entrypoint: model_def:MyTrial'"
        raise ConfigInvalid([Problem("", 1, None, "must be a map of fields", hint)])
    return tree


def _validated(tree: Tree, era: Era) -> tuple[ExperimentConfig, list[Finding]]:
    """The sections that are right, and all that is wrong with the configuration."""
    findings: list[Finding] = []
    try:
        config = validated(tree, era)
    except ValidationError as error:
        findings = findings_of(error)
        refused = frozenset(str(finding.loc[0]) for finding in findings if finding.loc)
        rest = {key: value for key, value in tree.items() if key not in refused}
        config = validated(rest, era)
    else:
        refused = frozenset()
    findings += inconsistencies(config, scope_of_tree(tree, era), refused)
    return config, findings


def _holds(tree: Any, loc: Loc) -> bool:
    return _at(tree, loc) is not _NOTHING


def _at(tree: Any, loc: Loc) -> Any:
    """The value at `loc`, _NOTHING if there is none."""
    for key in loc:
        if isinstance(tree, list) and isinstance(key, int):
            if key >= len(tree):
                return _NOTHING
        elif not isinstance(tree, Mapping) or key not in tree:
            return _NOTHING
        tree = tree[key]
    return tree


_NOTHING: Final = object()


def _order(problem: Problem) -> tuple[bool, int, str]:
    return problem.line is None, problem.line or 0, problem.path
