"""Checks a configuration: reads, lays over, validates, and reports every problem at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from control_plane.config.consistency import inconsistencies
from control_plane.config.eras import RULES, Era, EraMixed, EraRules, Tree, era_of
from control_plane.config.experiment import ExperimentConfig, scope_of_tree, validated
from control_plane.config.merge import merged, overridden
from control_plane.config.names import three_words
from control_plane.config.problems import ConfigInvalid, Finding, Loc, Problem, path_text
from control_plane.config.section import findings_of
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
        era = era_of([layers.user, layers.template, layers.cluster])
    except EraMixed as error:
        raise layers.refusal([error.finding]) from None
    tree = layers.merged(RULES[era], seed_default % (SEED_MAX + 1))
    config, findings = _validated(tree, era)
    if findings or layers.findings or layers.override_problems:
        raise layers.refusal(findings, tree)
    return config


@dataclass(frozen=True, slots=True)
class Layers:
    """The parts of a configuration, and what is needed to say where a value came from."""

    user: Tree
    template: Tree
    cluster: Tree
    place: Place
    overridden: tuple[Loc, ...]
    findings: tuple[Finding, ...]
    override_problems: tuple[Problem, ...]

    def merged(self, rules: EraRules, seed: int) -> Tree:
        """All layers over the defaults of the era."""
        tree: Tree = merged(self.user, merged(self.template, self.cluster, rules), rules)
        words = three_words(seed)
        generated = {
            "reproducibility": {"experiment_seed": seed},
            rules.generated_name: words if rules.era is Era.LENGTH else f"Experiment ({words})",
        }
        # No null hides a default.
        shown = replace(rules, null_hides=False)
        defaulted: Tree = merged(merged(tree, rules.defaults, shown), generated, shown)
        return defaulted

    def refusal(self, findings: Iterable[Finding], tree: Tree | None = None) -> ConfigInvalid:
        """Every problem, located; a value that could not be read is not judged twice."""
        unread = {finding.loc for finding in self.findings}
        all_findings = [*self.findings, *(it for it in findings if it.loc not in unread)]
        problems = [self._problem(it, tree) for it in all_findings] + [*self.override_problems]
        distinct = {(it.path, it.line, it.message): it for it in problems}
        return ConfigInvalid(sorted(distinct.values(), key=_order))

    def _problem(self, finding: Finding, tree: Tree | None) -> Problem:
        line, whole = line_of(self.place, finding.loc)
        hint = finding.hint
        source = self._source(finding.loc) if tree is None or _holds(tree, finding.loc) else ""
        if source and (not whole or source == "--config"):
            line = None
            hint = "; ".join(filter(None, (hint, f"set by {source}")))
        path = path_text(finding.loc)
        return Problem(path, line, finding.value, finding.message, hint)

    def _source(self, loc: Loc) -> str:
        if any(loc[: len(prefix)] == prefix for prefix in self.overridden if prefix):
            return "--config"
        if _holds(self.user, loc):
            return ""
        layers = (("the template", self.template), ("the cluster", self.cluster))
        return next((name for name, tree in layers if _holds(tree, loc)), "")


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
    lower, findings = _read_template(template)
    findings = [*document.findings, *findings]
    places: list[Loc] = []
    problems: list[Problem] = []
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
        findings=tuple(findings),
        override_problems=tuple(problems),
    )


def _read_template(text: str | None) -> tuple[Tree, list[Finding]]:
    try:
        document = parse(text or "")
        tree = _map(document.tree)
    except ConfigInvalid as error:
        problem = error.problems[0]
        place = "" if problem.line is None else f" on line {problem.line}"
        raise ConfigInvalid(
            [Problem("", None, None, f"the template{place}: {problem.message}", problem.hint)]
        ) from None
    return tree, list(document.findings)


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
    for key in loc:
        if isinstance(tree, list) and isinstance(key, int):
            if key >= len(tree):
                return False
        elif not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True


def _order(problem: Problem) -> tuple[bool, int, str]:
    return problem.line is None, problem.line or 0, problem.path
