"""`qualab stats`: what a person reads, what a machine reads, and how bad input ends."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from qualab import stats
from tests.cli.conftest import Command, Outcome

GUIDE = Path(__file__).parents[2] / "docs" / "statistics.md"
COUNTS = ("--gains", 7, "--losses", 12, "--items", 600)


def lines(outcome: Outcome) -> list[str]:
    assert outcome.code == 0, outcome.err
    return [" ".join(line.split()) for line in outcome.out.splitlines()]


SAID: dict[str, tuple[str, ...]] = {
    "test --gains 7 --losses 12 --items 600 --margin 0.02": (
        "difference −0.83 pp candidate minus baseline",
        "90 % interval −2.15 to +0.39 pp Tango's score interval; has to lie inside ±2 pp",
        "p (mid-p) 0.263 ",
        "p (exact) 0.359 ",
        "INCONCLUSIVE: these 600 items prove ±2.19 pp; ±2.00 pp needs about 751 (548 to 1,039) items",
        "if the difference of −0.83 pp is real.",
        "proven ±2.19 pp",  # rounded up
    ),
    "test --gains 7 --losses 12 --items 600 --margin 0.02 --both-right 300 --confidence 0.95": (
        "95 % interval −2.44 to +0.65 pp the same at another level, which decides nothing",
        "right 51.2 % of the candidate; 52.0 % of the baseline",
        "95 % interval −2.29 to +0.62 pp Newcombe's, as a cross-check",
        "p (unpaired) 0.773 ",
    ),
    "test --gains 10 --losses 40 --items 5000 --margin 0.02": (
        "EQUIVALENT: a loss of 0.60 pp (0.38 to 0.85) is real and inside the margin.",
    ),
    "test --gains 30 --losses 2 --items 600 --margin 0.02": (
        "IMPROVEMENT: the candidate is better by more than 2.00 pp",
    ),
    "test --gains 0 --losses 0 --items 10 --margin 0.02": (
        "INCONCLUSIVE: these 10 items prove ±25.89 pp; ±2.00 pp needs about 149 (149 to 5,547) items",
    ),
    "power --items 600 --discordance 0.05 --margin 0.03": (
        "600 items, 5 % of them right in exactly one arm (discordance)",
        "proves ±3 pp 87.0 % both one-sided score tests",
        "false alarm ",
    ),
    "mde --items 600 --discordance 0.01": (
        "smallest loss found none exists all losses and gains together make up the discordance",
        "2.03 pp the discordance is noise, and the loss comes on top",
    ),
    "size --margin 0.03 --discordance 0.05 --power 0.8 --looks 1 --repeats 4 --noise 0.04": (
        "Items to prove ±3 pp with 80 % power",
        "one metric 520 ",
        "with repeats 287 4 answers an item, which leave a discordance of 2 %",
    ),
}


@pytest.mark.parametrize("command", SAID)
def test_a_calculation_in_words(qualab: Command, command: str) -> None:
    printed = " ".join(lines(qualab("stats", *command.split())))
    assert [text for text in SAID[command] if text not in printed] == []
    for text, option in (("looks", "--looks 2"), ("unpaired", "--both-right"), ("95 % interval", "--both-right")):
        assert option in command or text not in printed, text


def test_options_reach_the_calculator_and_json_has_everything(qualab: Command) -> None:
    asked = ("--margin", 0.02, "--confidence", 0.99, "--alpha", 0.025, "--strict")
    found = qualab.json("stats", "test", *COUNTS, *asked)
    given = {"gains": 7, "losses": 12, "n_items": 600, "both_right": None, "margin": 0.02, "is_strict": True}
    assert given.items() <= found.items()
    assert (found["verdict"], found["pvalue_unpaired"]) == ("INCONCLUSIVE", None)
    for name, level in (("interval", 0.99), ("equivalence_interval", 0.95)):
        assert found[name].keys() == {"low", "high", "confidence_level"}
        assert found[name]["confidence_level"] == pytest.approx(level)


def documented() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    return [line.split()[1:] for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("command", documented(), ids=" ".join)
def test_every_command_of_the_guide_works(qualab: Command, command: list[str]) -> None:
    assert lines(qualab(*command))


def test_the_guide_names_functions_that_exist() -> None:
    table = GUIDE.read_text().split("## Beyond")[1].split("## Mistakes")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert len(named) > 10
    modules = [importlib.import_module(f"qualab.stats.{found.name}") for found in pkgutil.iter_modules(stats.__path__)]
    assert [name for name in named if not any(hasattr(module, name) for module in modules)] == []
