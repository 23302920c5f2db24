"""What users of lm_eval and of a shell type: lm_eval's own options, `--tasks list`, unknown tasks, and completion."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time

import pytest

from qualab.cli.lm_eval import HINTS, SHORT, translated
from qualab.cli.main import COMMANDS
from qualab.errors import UsageError
from qualab.settings import OPTIONS
from tests.cli.conftest import Command

WITHIN_S = 3.0 * 4
"""Four times what a person may wait: others use the machine, too."""


def test_every_option_of_lm_eval_works_or_has_a_hint() -> None:
    from lm_eval._cli.run import Run

    parsers = argparse.ArgumentParser().add_subparsers()
    actions = [action for action in Run(parsers)._parser._actions if action.dest != "help"]
    spelt = [name.replace("_", "-") for action in actions for name in action.option_strings if name.startswith("--")]
    own = {*HINTS, *(f"--{name.replace('_', '-')}" for name in OPTIONS), "--log-samples"}
    assert len(spelt) > 25
    assert [name for name in spelt if name not in own] == []
    for short, long in SHORT.items():
        action = next(action for action in actions if short in action.option_strings)
        assert long in [name.replace("_", "-") for name in action.option_strings]
    assert {name for action in actions for name in action.option_strings if len(name) == 2} == SHORT.keys()


@pytest.mark.parametrize(
    ("typed", "own"),
    [
        ("-t gsm8k ifeval -L 4 -f 2 -s", "--tasks gsm8k,ifeval --limit 4 --num-fewshot 2"),
        ("x.yaml --tasks a,b -o out", "x.yaml --tasks a,b --output-path out"),
        ("--gen-kwargs a=1 b=2 --seed 5 --model m", "--gen-kwargs a=1,b=2 --seed 5 --model m"),
        (
            "--apply-chat-template x.yaml --managed p.yml --seed -5",
            "--apply-chat-template x.yaml --managed p.yml --seed -5",
        ),
        ("--strict file -- more", "--strict file -- more"),
    ],
)
def test_options_that_are_spelt_otherwise_work(typed: str, own: str) -> None:
    assert translated(typed.split()) == own.split()


@pytest.mark.parametrize(
    "typed",
    [
        *("--batch_size 8", "-b auto", "--use_cache x", "--fewshot_as_multiturn", "--apply_chat_template NAME"),
        *(
            "--apply_chat_template=NAME",
            "--seed 0,1234,1234,1234",
            "--model_args base_url=u,model=m",
            "--device cuda:0",
        ),
        "--model local-completions",
    ],
)
def test_an_option_without_a_counterpart_says_what_to_use(qualab: Command, typed: str) -> None:
    done = qualab("run", "--tasks", "demo", *typed.split())
    name = SHORT.get(typed[:2], typed.replace("_", "-").split()[0].partition("=")[0])
    assert done.code == 2
    assert re.search(rf"^  {name}: .+$", done.err, re.MULTILINE), done.err
    assert len(done.err.splitlines()) == 2


def test_all_of_them_are_said_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        translated(["-M", "hf", "-a", "x=y", "-b", "1", "-s", "--limit", "3"])
    assert [line.split(":")[0].strip() for line in refused.value.hint.splitlines()] == [
        "--model",
        "--model-args",
        "--batch-size",
    ]


@pytest.mark.parametrize(
    ("command", "name", "code", "told"),
    [
        ("run", "list", 0, ("release", "kobest_hellaswag_gen", "lm_eval ls tasks")),
        ("plan", "list", 0, ("published-34",)),
        ("plan", "gsm8kk", 2, ("no task, group or suite named gsm8kk", "gsm8k")),
    ],
)
def test_tasks_are_listed_and_unknown_ones_named_before_lm_eval_is_loaded(
    qualab: Command, command: str, name: str, code: int, told: tuple[str, ...]
) -> None:
    began = time.monotonic()
    done = qualab(command, "--tasks", name)
    assert time.monotonic() - began < WITHIN_S
    assert done.code == code
    assert [text for text in told if text not in done.out + done.err] == []


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("qualab ", set(COMMANDS)),
        ("qualab re", {"resume", "report", "rescore"}),
        ("qualab run --look", {"--looks"}),
        ("qualab export ID --format ", {"parquet", "csv"}),
        ("qualab baseline a", {"add"}),
        ("qualab nothing --x", set()),
    ],
)
def test_a_shell_completes_commands_options_and_values_and_loads_one_command(typed: str, offered: set[str]) -> None:
    words = typed.split(" ")
    code = "import sys\nfrom qualab.cli.main import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    environment = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1), "_QUALAB_COMPLETE": "complete_bash"}
    command = f"import sys; sys.argv[0] = 'qualab'; exec({code!r})"
    ended = subprocess.run(
        [sys.executable, "-c", command],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, set(ended.stdout.split())) == (0, offered), ended.stderr
    loaded = set(ended.stderr.splitlines()[-1].split())
    assert not loaded & {"lm_eval", "pandas", "scipy", "alembic", "qualab.service.api.app"}
    assert "rich.console" not in loaded
