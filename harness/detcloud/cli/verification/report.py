"""The report of a self-test: a result for each step, as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from detcloud.cli.verification.plan import Plan
from detcloud.shared.masking import MASK, mask_urls
from detcloud.shared.tokens import TOKEN_PREFIX

Result = Literal["ok", "failed", "skipped"]
Mask = Callable[[str], str]

_TOKEN: Final = re.compile(re.escape(TOKEN_PREFIX) + r"[\w.-]+")
# Ids of accounts of AWS, also in ARNs.
_ACCOUNT: Final = re.compile(r"(?<![\d.])\d{8}(\d{4})(?![\d.])")


class StepFailed(Exception):
    """A step found a fault; the message is for users."""


class StepSkipped(Exception):
    """A step cannot run here; the message is for users."""


@dataclass
class StepReport:
    """The result of a step."""

    name: str
    """For example `pool gpus`."""
    result: Result = "ok"
    seconds: float = 0.0
    reason: str = ""
    """The fault or the reason for a skipped step; empty if the step is fine."""
    details: dict[str, Any] = field(default_factory=dict)
    """Figures and facts by name."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {
            "name": self.name,
            "result": self.result,
            "seconds": round(self.seconds, 1),
            "reason": self.reason,
            "details": self.details,
        }


@dataclass
class Report:
    """The report of a self-test."""

    facts: dict[str, Any]
    """Versions, cloud, region and time by name."""
    plan: Plan
    steps: list[StepReport] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    """A line for each remaining instance or experiment, with the command that removes it."""

    @property
    def has_failed(self) -> bool:
        """Whether any step failed."""
        return any(step.result == "failed" for step in self.steps)

    def to_json(self, mask: Mask = str) -> dict[str, Any]:
        """Return the whole report with masked texts."""
        document: dict[str, Any] = _mask_value(
            {
                **self.facts,
                "ok": not self.has_failed,
                "plan": {
                    "pools": [pool.to_json() for pool in self.plan.pools],
                    "skipped": dict(self.plan.skipped),
                    "cost": round(self.plan.cost, 4),
                },
                "steps": [step.to_json() for step in self.steps],
                "leftovers": self.leftovers,
            },
            mask,
        )
        return document

    def render(self, mask: Mask = str) -> str:
        """Return the whole report as text with masked texts, for a file or a bug report."""
        facts = [f"{name}: {value}" for name, value in self.facts.items()]
        lines = ["detcloud deploy verify", *facts, "", *plan_lines(self.plan), ""]
        lines += step_lines(self.steps)
        lines += [f"left: {line}" for line in self.leftovers]
        lines.append("failed" if self.has_failed else "no step failed")
        return "\n".join(map(mask, lines)) + "\n"


def plan_lines(plan: Plan) -> list[str]:
    """Return a line for each pool of a plan, and a line with the sum."""
    lines = [
        f"pool {pool.pool}: {pool.instance_type} {pool.zone} {pool.market}, "
        f"{pool.price_per_hour:.4g} $ an hour, about {pool.minutes:g} minutes"
        f"{' with a notice' if pool.has_notice else ''}: {pool.cost:.3f} $"
        for pool in plan.pools
    ]
    lines += [f"pool {name} is left out: {reason}" for name, reason in plan.skipped.items()]
    if plan.extra_cost:
        lines.append(f"Fault Injection Service: {plan.extra_cost:.2f} $")
    return [*lines, f"estimated cost: {plan.cost:.3f} $"]


def step_lines(steps: Iterable[StepReport]) -> list[str]:
    """Return the lines of each step: result, seconds, reason and details."""
    return [line for step in steps for line in _step_lines(step)]


def _step_lines(step: StepReport) -> list[str]:
    """Return the lines of a step. Lines after the first are indented."""
    [first, *more] = step.reason.splitlines() or [""]
    head = f"{step.result:<8} {step.seconds:>7.1f} s  {step.name}{f': {first}' if first else ''}"
    details = [f"{name}: {_detail_text(value)}" for name, value in step.details.items()]
    return [head, *(f"{'':<20}{line}" for line in (*more, *details))]


def _detail_text(value: object) -> str:
    """Return a detail as text. Maps and lists become comma-separated texts."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_detail_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_detail_text(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def make_mask(private: Iterable[str]) -> Mask:
    """Return a function that masks secrets in a text.

    Masked are tokens, signatures in URLs, the first eight digits of account ids, and the texts of
    `private` except their last four characters if they are longer than eight.
    """
    known = {
        # An id of digits may be a part of another number.
        re.compile(rf"(?<!\d){re.escape(secret)}(?!\d)"): secret[-4:] if len(secret) > 8 else ""
        for secret in sorted(filter(None, private), key=len, reverse=True)
    }

    def mask(text: str) -> str:
        text = _TOKEN.sub(MASK, mask_urls(text))
        for secret, end in known.items():
            text = secret.sub(MASK + end, text)
        return _ACCOUNT.sub(rf"{MASK}\1", text)

    return mask


def _mask_value(value: Any, mask: Mask) -> Any:
    """Return a JSON value with all texts masked."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {mask(str(name)): _mask_value(item, mask) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_value(item, mask) for item in value]
    return value
