"""What users of lm_eval type: its options in qualab's words, and `--tasks list`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

from qualab import bootstrap
from qualab.cli.output import annotated, terminal_width
from qualab.errors import UsageError

SHORT = {"-t": "--tasks", "-M": "--model", "-a": "--model-args", "-L": "--limit", "-c": "--use-cache"}
SHORT |= {"-f": "--num-fewshot", "-b": "--batch-size", "-o": "--output-path", "-s": "--log-samples", "-E": "--samples"}
SHORT |= {"-C": "--config", "-v": "--verbosity", "-w": "--write-out", "-x": "--predict-only"}
LISTS = ("--tasks", "--gen-kwargs")
"""Options whose values lm_eval also takes separated by spaces."""
DROPPED = ("--log-samples",)
"""Flags for what is always done: every answer is stored, and --output-path writes samples."""
SERVED = "the engines run already: start them with it, both alike"
UPLOAD = "nothing is uploaded; `qualab report`, `export` and `serve` show the results"
ALWAYS = "leave it out:"
HINTS = {
    "--model-args": "--baseline URL and --candidate URL name the servers, --model what they serve; --concurrency, "
    "--timeout, --max-attempts and --tokenizer are options",
    "--config": "the experiment file itself, without an option: qualab run experiment.yaml (`qualab init` writes one)",
    "--batch-size": "--concurrency N, the requests under way in each arm",
    "--max-batch-size": "--concurrency N, the requests under way in each arm",
    "--use-cache": f"{ALWAYS} every answer is stored, and `qualab resume ID` asks only what is missing",
    "--cache-requests": f"{ALWAYS} requests are made once and stored",
    "--device": SERVED,
    "--fewshot-as-multiturn": f"{ALWAYS} with --apply-chat-template few-shot examples are turns, as lm_eval's default",
    "--samples": "--limit N, the first items of each task",
    "--check-integrity": f"{ALWAYS} tasks are checked when they are loaded, endpoints by `qualab preflight`",
    "--write-out": "`qualab serve` shows the prompts of every item",
    "--show-config": "`qualab plan` writes the whole plan; `qualab show ID --format json` shows it",
    "--verbosity": f"{ALWAYS} errors say what is wrong; --format json gives all numbers",
    "--predict-only": f"{ALWAYS} answers are stored before they are scored, and `qualab rescore ID` scores them again",
    "--wandb-args": UPLOAD,
    "--wandb-config-args": UPLOAD,
    "--trackio-args": UPLOAD,
    "--hf-hub-log-args": UPLOAD,
    "--trust-remote-code": f"{ALWAYS} no code of a data set is run",
    "--confirm-run-unsafe-code": f"{ALWAYS} tasks that run a model's code are refused",
    "--metadata": "write it into the task's own YAML (--include-path DIR)",
    "--seed": "--seed N, one number for few-shot draws (lm_eval's fourth), item order and sampling",
    "--apply-chat-template": "the flag alone: the servers apply their own template; start both with another one",
    "--model": "the name that both servers serve; they are called over HTTP, at --baseline and --candidate",
}
"""Options of lm_eval that are none here -> what to use. The last three are, with other values."""
LM_EVAL_MODELS = ("hf", "local-completions", "local-chat-completions", "openai-completions", "openai-chat-completions")


def list_tasks() -> None:
    """Print suites and the catalog's tasks; lm-eval is not loaded."""
    catalog = bootstrap.task_catalog()
    suites = [(name, "", entry.description) for name, entry in catalog.suites.items()]
    tasks = [
        (
            ", ".join(entry.groups or entry.tasks),
            "",
            f"{entry.title}; tasks: {', '.join(entry.tasks)}" if entry.groups else entry.title,
        )
        for entry in catalog.benchmarks.values()
    ]
    for title, rows in (("Suites", suites), ("Tasks and groups", tasks)):
        typer.echo(f"{title}\n{annotated(rows, terminal_width())}\n")
    typer.echo(
        "Every other task, group or tag of lm-evaluation-harness works by its name: `lm_eval ls tasks` lists them."
    )


def translated(arguments: list[str]) -> list[str]:
    """Return a command's arguments in qualab's spelling. Raises UsageError with a line for each that has none."""
    own, unknown = list[str](), dict[str, str]()
    for option, parts in _options(arguments):
        name = option.partition("=")[0]
        values = [",".join(parts)] if name in LISTS and parts else parts
        text = option.partition("=")[2] or "".join(values[:1])
        is_own = {
            "--seed": "," not in text,
            "--apply-chat-template": not text or Path(text).is_file(),
            "--model": text not in LM_EVAL_MODELS,
        }.get(name, name not in HINTS)
        if not is_own:
            unknown[name] = HINTS[name]
        elif name not in DROPPED:
            own += [option, *values] if option.startswith("-") else values
    if unknown:
        lines = [f"{name}: {hint}" for name, hint in unknown.items()]
        raise UsageError("Options as lm_eval has them, and what to use here", hint="\n  ".join(lines))
    return own


def _options(arguments: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option with the values behind it; "" has experiment files, and what comes first."""
    option, values = "", list[str]()
    for argument in arguments:
        is_file = argument.endswith((".yaml", ".yml")) or (bool(values) and Path(argument).is_file())
        if (argument.startswith("-") and not argument[1:2].isdigit()) or is_file:
            yield option, values
            option, values = ("", [argument]) if is_file else (SHORT.get(argument, argument), [])
        else:
            values.append(argument)
    yield option, values
