"""Two answers side by side, cut where they begin to differ."""

from __future__ import annotations

import re
from dataclasses import dataclass

from qualab.app.reporting.flips import first_difference, marked
from qualab.app.viewing.words import Wording
from qualab.domain.items import Answer, Reply
from qualab.domain.numbers import count, seconds
from qualab.domain.report import Fact
from qualab.domain.text import visible_text

WORD = re.compile(r"\s*\S*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideShown:
    """One arm's answer. Texts are a model's: never markup."""

    title: str
    shared: str
    marked: str
    """The first word that differs from the other arm's; empty where none does."""
    rest: str
    ends: str
    """Said in place of what differs, where the text ends there; empty otherwise."""
    nothing: str
    """Said in place of the text where there is none, or an empty one; empty otherwise."""
    reasoning: str
    """What the model thought before its answer; empty where nothing is known of it."""
    error: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Both answers of one item and repeat."""

    repeat: int
    difference: str
    sides: tuple[SideShown, ...]


def sides_of(repeat: int, baseline: Answer | None, candidate: Answer | None, words: Wording) -> Sides:
    """Whatever is missing is said."""
    both = [None if one is None else one.reply.text for one in (baseline, candidate)]
    off, on = both
    place = None if off is None or on is None or off == on else first_difference(off, on)
    return Sides(
        repeat=repeat,
        difference=_difference(off, on, place, words),
        sides=tuple(
            _side(words(name), answer, place, words)
            for name, answer in (("baseline", baseline), ("candidate", candidate))
        ),
    )


def _difference(off: str | None, on: str | None, place: int | None, words: Wording) -> str:
    if off is None or on is None:
        return words("one is missing")
    if place is None:
        return words("same texts")
    if place <= 1:
        return words("differ after one" if place else "differ at once")
    return words("differ after", n=count(place))


def _side(title: str, answer: Answer | None, place: int | None, words: Wording) -> SideShown:
    text = answer.reply.text if answer else None
    at = len(text or "") if place is None else place
    rest = (text or "")[at:]
    found = WORD.match(rest)
    head = "" if place is None or found is None else rest[: found.end()]
    return SideShown(
        title=title,
        shared=visible_text((text or "")[:at]),
        marked=marked(head),
        rest=visible_text(rest[len(head) :]),
        ends=words("ends here") if place is not None and not rest and text else "",
        nothing=words("no answer") if text is None else "" if text else words("empty answer"),
        reasoning=visible_text(answer.reply.reasoning) if answer else "",
        error=answer.reply.error if answer else "",
        facts=tuple(_facts(answer.reply, words)) if answer else (),
    )


def _facts(reply: Reply, words: Wording) -> list[Fact]:
    said = [
        ("answer status", words(f"answer {reply.status}")),
        ("finish reason", reply.finish_reason or words("not said")),
        *([("answered by", reply.model)] if reply.model else []),
    ]
    if reply.prompt_tokens is not None or reply.completion_tokens is not None:
        numbers = (_count(reply.prompt_tokens), _count(reply.completion_tokens))
        said.append(("tokens", words("tokens of", prompt=numbers[0], completion=numbers[1])))
    if reply.reasoning_characters:
        said.append(("reasoning", words("characters of", n=count(reply.reasoning_characters))))
    said += [("latency", seconds(reply.latency_s)), ("attempts", count(reply.attempts))]
    if (drafted := reply.drafted) is not None:
        numbers = (count(drafted.accepted_tokens), _count(drafted.draft_tokens))
        said.append(("drafted", words("drafted of", accepted=numbers[0], drafted=numbers[1])))
    return [Fact(label=words(key), text=text) for key, text in said]


def _count(number: int | None) -> str:
    return "?" if number is None else count(number)
