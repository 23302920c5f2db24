"""The lines to sign on, and the methods with their sources."""

from __future__ import annotations

from collections.abc import Iterator

from qualab.app.analysis.ruling import is_one_sided
from qualab.app.reporting.metrics import verdict_cell
from qualab.app.reporting.source import Source
from qualab.app.reporting.verdicts import signoff_text
from qualab.app.reporting.words import Words
from qualab.domain.names import EvidenceKind
from qualab.domain.report import Bullets, Paragraph, Section, SignOff
from qualab.domain.signoffs import SignOff as Signed

METHODS = {
    EvidenceKind.COUNTS: ("method difference", "method interval"),
    EvidenceKind.CLUSTERS: ("method clusters",),
    EvidenceKind.SCORES: ("method bounded",),
    EvidenceKind.LABELS: ("method labels",),
}
"""What is said of each kind of evidence."""
ONE_SIDED = {"method interval": "method interval one-sided"}
"""What is said instead where a loss alone has to be ruled out."""


def signoff_section(source: Source, words: Words) -> Section:
    """Whether the result can be signed off, and where."""
    key = "sign off how sealed" if source.seal else "sign off how"
    how = words(key, id=source.comparison.id, plan=source.analysis.plan_hash[:12], seal=source.seal[:12])
    lines = SignOff(
        choices=(words(source.key("approve")), words("reject"), words("further")),
        fields=tuple(words(key) for key in ("name", "date field", "signature")),
        roles=tuple(words(key) for key in ("evaluator", "releaser")),
    )
    signed = tuple(_signed(one, words) for one in source.signoffs)
    record = (Bullets(title=words("signed off"), items=signed),) if signed else ()
    to_sign = () if source.is_after_data else (Paragraph(text=how), lines)
    blocks = (Paragraph(text=signoff_text(source, words)), *record, *to_sign)
    return Section(id="signoff", title=words("sign off"), blocks=blocks)


def _signed(one: Signed, words: Words) -> str:
    said = [
        words(
            "signed by",
            verdict=verdict_cell(one.verdict, words).text,
            name=one.signed_by,
            time=words.moment(one.signed_at),
        )
    ]
    if one.note:
        said.append(words("signed note", note=one.note))
    if one.override:
        obstacles = "; ".join(words.sentences(one.obstacles))
        said.append(words("signed in spite of", obstacles=obstacles, reason=one.override))
    if one.analysis_hash:
        said.append(words("signed seal", seal=one.analysis_hash))
    return " ".join(said)


def methods_section(source: Source, words: Words) -> Section:
    """The methods that this comparison's metrics got, each with its source."""
    items = tuple(dict.fromkeys(_methods(source, words)))
    return Section(id="methods", title=words("methods"), blocks=(Bullets(items=items),))


def _methods(source: Source, words: Words) -> Iterator[str]:
    is_lone = is_one_sided(source.plan.rule)
    kinds = {row.evidence.kind for row in source.analysis.metrics if row.evidence}
    yield words("method scores", version=source.plan.harness_version)
    for kind, keys in METHODS.items():
        if kind in kinds:
            yield from (words(ONE_SIDED.get(key, key) if is_lone else key) for key in keys)
    yield words("method all")
    yield words("method family")
    if source.plan.looks:
        yield words("method looks")
    if source.analysis.noise:
        yield words("method noise")
    yield words("method missing")
    yield words("method unpaired")
