"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from qualab.errors import UsageError
from qualab.model.names import Objective
from qualab.model.plan import FindingCode


class Format(StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"


OutputFormat = Annotated[Format, typer.Option("--format", help="text for people, json for machines.")]
Database = Annotated[str | None, typer.Option("--db", help="SQLite file or database URL (QUALAB_DB).")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", "--data_dir", help="Folder with the data sets as JSONL (QUALAB_DATA_DIR)."),
]
AllowEndpoint = Annotated[
    list[str] | None,
    typer.Option(help="What may be called: host (with *), address or network. Repeat it for more."),
]
AllowPath = Annotated[
    list[Path] | None, typer.Option(help="A folder of this machine that requests may name. Repeat it for more.")
]
SecretEnv = Annotated[
    list[str] | None, typer.Option(help="Environment variables that env:NAME may name. Default: QUALAB_KEY_*.")
]
SecretDir = Annotated[Path | None, typer.Option(help="Folder of the files that file:/path may name.")]


def _option(name: str, text: str) -> Any:
    """An option that both spellings of a name give."""
    return typer.Option(f"--{name}", f"--{name.replace('_', '-')}", help=text)


Baseline = Annotated[str | None, typer.Option(help="URL of the endpoint with the drafter off.")]
Candidate = Annotated[str | None, typer.Option(help="URL of the endpoint with the drafter on.")]
Model = Annotated[str | None, typer.Option(help="Model name as both endpoints serve it.")]
Tasks = Annotated[str | None, typer.Option(help="Tasks, groups or suites, separated by commas.")]
Fewshot = Annotated[int | None, _option("num_fewshot", "Few-shot examples.")]
Limit = Annotated[float | None, typer.Option(help="Items a task, or a share below 1. Never signed off.")]
IncludePath = Annotated[str | None, _option("include_path", "Folders with more task YAMLs.")]
GenKwargs = Annotated[str | None, _option("gen_kwargs", "As temperature=0.7,top_p=0.9.")]
AllowExtra = Annotated[
    bool | None,
    typer.Option(
        "--allow_extra/--no-allow_extra",
        "--allow-extra/--no-allow-extra",
        help="Send generation settings that are not known, or that an engine ignores.",
    ),
]
ChatTemplate = Annotated[
    bool | None,
    typer.Option(
        "--apply_chat_template/--no-apply_chat_template",
        "--apply-chat-template/--no-apply-chat-template",
        help="Generations over chat completions, or over completions. Default: as the suite says.",
    ),
]
SystemInstruction = Annotated[str | None, _option("system_instruction", "System prompt.")]
Seed = Annotated[int | None, typer.Option(help="Seed of few-shot draws, item order and sampling.")]
Repeats = Annotated[int | None, typer.Option(help="Answers an item (needs a temperature).")]
Looks = Annotated[
    int | None, typer.Option(help="Looks (2 to 10) at which the run may stop early. Default: it asks everything.")
]
Sequential = Annotated[
    bool | None,
    typer.Option(
        "--sequential/--no-sequential", help="Ask the candidate after the baseline, on one device. Never signed off."
    ),
]
NoiseRuns = Annotated[int | None, _option("noise_floor_runs", "Further runs of the baseline alone, afterwards.")]
NoiseConcurrency = Annotated[
    int | None, _option("noise_floor_concurrency", "Requests in flight in those runs. Default: as in the arms.")
]
Margin = Annotated[float | None, typer.Option(help="Largest difference that counts as equal; 0.02 is 2 pp.")]
Margins = Annotated[
    str | None, typer.Option(help="Other margins by benchmark, task or metric, as gsm8k=0.01,kobest=0.03.")
]
ScoreBounds = Annotated[
    str | None,
    _option("score_bounds", "Lowest and highest score where not 0 and 1, by the same names, as reward=-1:1."),
]
ObjectiveOption = Annotated[
    Objective | None, typer.Option(help="Prove that nothing changes by the margin, or that no more than it is lost.")
]
Strict = Annotated[
    bool | None,
    typer.Option("--strict/--no-strict", help="Call a loss REGRESSION inside the margin too, for a lossless drafter."),
]
Alpha = Annotated[float | None, typer.Option(help="Level of each one-sided test.")]
Power = Annotated[float | None, typer.Option(help="Chance of proving the margin that is aimed at; 0.8 is usual.")]
Concurrency = Annotated[int | None, typer.Option(help="Requests in flight in each arm.")]
Timeout = Annotated[float | None, typer.Option(help="Deadline of one attempt, seconds.")]
MaxAttempts = Annotated[int | None, _option("max_attempts", "Attempts a request.")]
MaxWait = Annotated[
    float | None, _option("max_wait", "Seconds a request waits where its server asks for it (429, Retry-After).")
]
MaxFailedShare = Annotated[float | None, _option("max_failed_share", "Share of missing answers that stops an arm.")]
MaxMissingShare = Annotated[
    float | None,
    _option("max_missing_share", "Share of pairs without an answer that is INVALID. Default: a quarter of the margin."),
]
MissingLost = Annotated[
    float | None, _option("missing_lost", "Share of the pairs without an answer taken as lost. Default: all of them.")
]
MinAcceptedShare = Annotated[
    float | None, _option("min_accepted_share", "Share of accepted draft tokens below which a task is INVALID.")
]
AllowUnobserved = Annotated[
    bool | None,
    typer.Option(
        "--allow_unobserved/--no-allow_unobserved",
        "--allow-unobserved/--no-allow-unobserved",
        help="Let a verdict stand where nothing tells that the drafter ran.",
    ),
]
Image = Annotated[str | None, typer.Option(help="Image that both arms run, as NAME@sha256:DIGEST.")]
Revision = Annotated[str | None, typer.Option(help="Commit of the checkpoint that both arms serve.")]
Checkpoint = Annotated[str | None, typer.Option(help="The checkpoint's folder on this machine: its hash pins it.")]
Pods = Annotated[
    str | None,
    typer.Option(help="Pods whose image kubectl verifies, as baseline=NS/POD,candidate=NS/POD."),
]
Containers = Annotated[
    str | None, typer.Option(help="Containers whose image docker verifies, as baseline=NAME,candidate=NAME.")
]
DrafterCosts = Annotated[
    str | None,
    _option("drafter_costs", "As draft=0.2,overhead=0.05 steps of the model: shows where drafting pays."),
]
Tokenizer = Annotated[str | None, typer.Option(help="tokenizer.json or its folder, where the server cannot tokenize.")]
Label = Annotated[str | None, typer.Option(help="A name to find the comparison by.")]
KeyFile = Annotated[Path | None, _option("api_key_file", "File with the API key (or QUALAB_API_KEY).")]
OutputPath = Annotated[Path | None, _option("output_path", "Also export lm-eval files into this folder.")]
Allow = Annotated[
    str | None, typer.Option(help="Findings that are let stand, as fewshot,prompts; they are named in the result.")
]


def finding_codes(text: str) -> tuple[FindingCode, ...]:
    """What --allow names. Raises UsageError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = {code.value: code for code in FindingCode}
    if wrong := [name for name in names if name not in known]:
        raise UsageError(f"There is no finding named {wrong[0]}", hint=f"There are: {', '.join(known)}")
    return tuple(known[name] for name in names)
