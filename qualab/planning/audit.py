"""Outlook of a plan's token audit: the tokens that it can score, the share that they prove, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qualab.model.audit import is_chosen, is_free
from qualab.model.items import Item, generation_request, generations
from qualab.model.names import ArmName
from qualab.model.plan import Plan
from qualab.model.structured import structured_request
from qualab.stats.audit import provable_share, tokens_needed

ASSUMED_TOKENS = 100
"""Tokens of an answer where no pilot tells."""
BYTES_A_TOKEN = 4
"""UTF-8 bytes of a prompt's token where no pilot tells; English and Korean have about as many."""


Lengths = Mapping[str, tuple[float, float]]
"""Mean tokens of a task's prompts and answers, as a pilot measured them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOutlook:
    """Reach and cost of a plan's audit. Counts are of both arms together, and estimates."""

    n_answers: int
    """Greedy answers that fit into the budget of tokens."""
    n_tokens: int
    provable_share: float | None
    """Share of foreign tokens that the candidate's tokens exclude if none is foreign; None where there are none."""
    n_tokens_needed: int
    """Greedy tokens without a foreign one for CLEAN."""
    n_asked_again: int
    """Answers sampled at temperature 1, and answers with a response format or tools."""
    generated_tokens: int
    """Their tokens at most."""
    prefilled_tokens: int
    """Tokens of prompts and answers that the baseline reads to score them."""
    is_assumed: bool
    """True where no pilot told how long some task's answers are."""

    @property
    def is_enough(self) -> bool:
        return self.n_tokens >= self.n_tokens_needed


def audit_outlook(items: Iterable[Item], plan: Plan, lengths: Lengths) -> AuditOutlook | None:
    """Estimate what the plan's audit can prove and costs; None without one. Raises as `generation_request`."""
    if plan.audit is None:
        return None
    n_arms, cap = len(ArmName), plan.audit.sampled_max_tokens
    n_items = n_greedy = greedy_tokens = greedy_prompts = sampled_tokens = sampled_prompts = 0.0
    n_structured, structured_tokens, is_assumed = 0, 0, False
    for item in generations(items):
        settings = generation_request(item.prompts[0], sampling=plan.sampling).payload
        guess = len(item.prompts[0].text.encode(errors="replace")) / BYTES_A_TOKEN, float(ASSUMED_TOKENS)
        prompt, answer = lengths.get(item.task, guess)
        if is_free(settings):
            n_items, sampled_prompts = n_items + 1, sampled_prompts + prompt
            sampled_tokens += min(settings["max_tokens"], cap)
        if structured_request(item, sampling=plan.sampling):
            n_structured, structured_tokens = n_structured + 1, structured_tokens + settings["max_tokens"]
        if is_chosen(settings):
            is_assumed |= item.task not in lengths
            n_greedy, greedy_prompts = n_greedy + 1, greedy_prompts + prompt
            greedy_tokens += min(settings["max_tokens"], answer)
    scored = min(1.0, plan.audit.greedy_tokens / (n_arms * greedy_tokens)) if greedy_tokens else 0.0
    sampled = min(1.0, plan.audit.sampled_items / n_items) if n_items else 0.0
    n_tokens = round(n_arms * scored * greedy_tokens)
    generated = round(n_arms * sampled * sampled_tokens)
    prompts = n_arms * (scored * greedy_prompts + sampled * sampled_prompts)
    alpha, n_candidate = plan.rule.alpha, n_tokens // n_arms
    return AuditOutlook(
        n_answers=round(n_arms * scored * n_greedy),
        n_tokens=n_tokens,
        provable_share=provable_share(n_candidate, alpha=alpha) if n_candidate else None,
        n_tokens_needed=n_arms * tokens_needed(plan.audit.max_foreign_share, alpha=alpha),
        n_asked_again=round(n_arms * (sampled * n_items + n_structured)),
        generated_tokens=generated + n_arms * structured_tokens,
        prefilled_tokens=n_tokens + generated + round(prompts),
        is_assumed=is_assumed,
    )
