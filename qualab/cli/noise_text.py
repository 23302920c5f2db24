"""What a terminal shows of the noise floor and of repeats: the primary metrics; JSON has all."""

from __future__ import annotations

from collections.abc import Iterator

from qualab.domain.comparison import (
    Analysis,
    MetricNoise,
    NoiseFloor,
    OddOneOut,
    RepeatNoise,
    RepeatSummary,
    SampledTexts,
    TextsCompared,
)
from qualab.domain.numbers import pvalue, share

_INDENT = " " * 9


def noise_lines(analysis: Analysis) -> Iterator[str]:
    """The baseline against itself, beside the candidate; then the repeats of each item."""
    primaries = {row.id for row in analysis.metrics if row.is_primary}
    if analysis.noise:
        yield from _floor_lines(analysis.noise, primaries)
    if analysis.repeats:
        yield from _repeat_lines(analysis.repeats, primaries)


def _floor_lines(found: NoiseFloor, primaries: set[str]) -> Iterator[str]:
    runs = "1 more run" if found.n_runs == 1 else f"{found.n_runs} more runs"
    yield (
        f"{'noise':<9} {runs} of the baseline at concurrency {found.concurrency}, "
        f"{found.n_answered:,} of {found.n_asked:,} answered"
    )
    if found.note:
        yield f"{_INDENT} {found.note}"
    if found.baseline and found.candidate:
        yield f"{_INDENT} texts of the baseline's runs: {_texts(found.baseline)}"
        yield f"{_INDENT} texts of the arms: {_texts(found.candidate)}{_odd(found.odd_texts)}"
    if found.sampled:
        yield f"{_INDENT} are texts of the baseline's runs drawn alike? {_mmd(found.sampled)}"
    yield from (f"{_INDENT} {one.metric}: {_flips(one)}" for one in found.metrics if one.metric in primaries)


def _texts(found: TextsCompared) -> str:
    first = found.first_difference
    at = "" if first is None else f", first difference at character {first:,.0f} (median)"
    return f"{found.same_text:,} of {found.n_pairs:,} the same, {found.changed:,} changed beyond white space{at}"


def _odd(found: OddOneOut | None) -> str:
    if found is None:
        return ""
    if not found.n_odd:
        return "; no odd one out, so no test"
    return (
        f"; odd one out the candidate in {found.n_candidate_odd} of {found.n_odd} (a third by chance), "
        f"p {pvalue(found.pvalue)}"
    )


def _flips(found: MetricNoise) -> str:
    if found.flip_rate_baseline is None or found.flip_rate_candidate is None:
        return "no answer that both arms and all runs have"
    return (
        f"scores flip in {share(found.flip_rate_baseline)} between runs of the baseline, "
        f"{share(found.flip_rate_candidate)} between the arms{_odd(found.odd)}"
    )


def _repeat_lines(found: RepeatSummary, primaries: set[str]) -> Iterator[str]:
    head = "repeats"
    for one in found.metrics:
        if one.metric in primaries:
            yield f"{head:<9} {one.metric}, {one.arm}: {', '.join(_repeat_facts(one))}"
            head = ""
    if found.sampled:
        yield f"{head:<9} are texts of the arms drawn alike? {_mmd(found.sampled)}"


def _repeat_facts(one: RepeatNoise) -> Iterator[str]:
    if one.flip_rate is None:
        yield f"no item has all its {one.n_repeats} scores"
        return
    yield f"two of an item's {one.n_repeats} differ in {share(one.flip_rate)}"
    if one.icc is None or one.icc_mean is None:
        yield "no variance to share"
        return
    yield f"{share(one.icc)} of the variance between items, {share(1.0 - one.icc)} within"
    yield f"ICC(1) {one.icc:.2f}, ICC({one.n_repeats}) {one.icc_mean:.2f}"


def _mmd(found: SampledTexts) -> str:
    return f"p {pvalue(found.pvalue)} over {found.n_prompts:,} prompts (permutation MMD); small where they are not"
