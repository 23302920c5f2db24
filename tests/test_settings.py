"""Settings: which source wins, what a wrong one says, and where keys may come from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from qualab.bootstrap import location_of
from qualab.errors import InvalidValue, UnknownSetting, UsageError
from qualab.model.names import ArmName
from qualab.model.plan import NoisePlan
from qualab.settings import FIELDS, GROUPS, OPTIONS, Settings, keys_of, load
from tests.cli.conftest import forget_settings


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_settings(monkeypatch)


def experiment(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_command_line_beats_environment_beats_file_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = experiment(tmp_path, "margin: 0.03\nalpha: 0.04\nseed: 1\n")
    monkeypatch.setenv("QUALAB_ALPHA", "0.02")
    monkeypatch.setenv("QUALAB_SEED", "2")
    settings = load(file=file, command_line={"seed": 3, "label": None})
    assert (settings.margin, settings.alpha, settings.seed, settings.concurrency) == (0.03, 0.02, 3, 8)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("temperature=0.7,top_p=0.9", {"temperature": 0.7, "top_p": 0.9}),
        ("do_sample=true,temperature=1,until=END", {"do_sample": True, "temperature": 1, "until": "END"}),
        ('{"stop_token_ids": [1, 2]}', {"stop_token_ids": [1, 2]}),
        ({"temperature": 0}, {"temperature": 0}),
        (
            'chat_template_kwargs={"enable_thinking": false, "tags": [1, 2]},top_k=5',
            {"chat_template_kwargs": {"enable_thinking": False, "tags": [1, 2]}, "top_k": 5},
        ),
        ('until=["a,b=c", "c"],temperature=1', {"until": ["a,b=c", "c"], "temperature": 1}),
    ],
)
def test_gen_kwargs_are_read_as_lm_eval_reads_them(given: object, expected: object) -> None:
    assert load(command_line={"gen_kwargs": given}).gen_kwargs == expected


A = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gen_kwargs": "temperature=0.7,temperature=0.2"}, "'temperature' is given twice"),
        ({"gen_kwargs": {"temperature": "warm"}}, "temperature 'warm' is not a number"),
        ({"gen_kwargs": "temperature"}, "is not of the form name=value"),
        ({"gen_kwargs": "a={"}, "neither JSON nor"),
        ({"gen_kwargs": "{x"}, "neither JSON nor"),
        ({"gen_kwargs": {"seed": 7}}, "'seed' cannot be set"),
        ({"limit": 0}, "limit must be above 0"),
        ({"margin": 1.0}, "margin must be below 1"),
        ({"margins": "a=0"}, r"margins\.a must be at least 1e-06"),
        ({"alpha": 0.5}, "alpha must be below 0.5"),
        ({"alpha": 1e-300}, "alpha must be at least 1e-09"),
        ({"power": 0}, "power must be above 0"),
        ({"power": 0.9999999999999999}, r"power must be at most 0\.999999"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"looks": 1}, "looks must be at least 2"),
        ({"timeout": float("inf")}, "timeout must be at most 86400"),
        ({"timeout": -1}, "timeout must be above 0"),
        ({"drafter_costs": "draft=-1"}, r"drafter_costs\.draft must be at least 0"),
        ({"repeats": 2}, "at temperature 0 would ask the same thing"),
        ({"looks": 3, "sequential": True}, "one after the other"),
        ({"noise_floor": {"runs": 10}}, "noise_floor_runs must be at most 9"),
        ({"noise_floor": {"times": 1}}, r"noise_floor\.times must be one of runs, concurrency"),
        ({"noise_floor": 3}, "noise_floor must be a mapping of runs, concurrency"),
        ({"speed": {"wroks": "copy"}}, r"speed\.wroks must be one of works, prompts"),
        ({"pins": {"image": "a b"}}, "is not an image with a digest"),
        ({"score_bounds": {"sums": (100.0, 0.0)}}, r"score_bounds\.sums must be two numbers, the lower first"),
        ({"score_bounds": {"sums": (0.0, float("inf"))}}, "must be two numbers"),
        ({"drafter_costs": {"draft": 1, "drift": 2}}, r"drafter_costs\.drift"),
        ({"pods": {ArmName.BASELINE: "off-0"}}, "'off-0' of the baseline is not of the form namespace/pod"),
        ({"pods": "candidate=a/--all"}, "of the candidate is not of the form namespace/pod"),
        ({"pods": "left=a/b"}, "'left=a/b' is not of the form|left"),
        ({"containers": "baseline=-f"}, "'-f' of the baseline"),
        ({"pods": "baseline=a/b", "containers": "baseline=c"}, "The baseline has a pod and a container"),
        *(
            ({"image": image}, "is not an image with a digest")
            for image in (f"a/b@{A[:-1]}", f"a/b@{A}0", f"a/b@{A.upper()}", "a/b@latest", "a b", f"a@{A}:v1")
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        load(content=given, environment=False)


def test_a_hint_names_no_option_that_is_none() -> None:
    for given, hint in (({"tau": 0}, "Given: 0"), ({"tokens": 0}, "--audit-tokens: Greedy tokens")):
        with pytest.raises(InvalidValue) as refused:
            load(content={"audit": given}, environment=False)
        assert refused.value.hint.startswith(hint)


def test_a_mapping_in_a_file_stands_for_its_settings_and_flags_win(tmp_path: Path) -> None:
    file = experiment(tmp_path, "noise_floor: {concurrency: 3}\npins: {revision: a}\n")
    settings = load(file=file, command_line={"revision": "b"}, environment=False)
    assert (settings.noise_plan, settings.revision) == (NoisePlan(runs=1, concurrency=3), "b")


def test_lists_and_bounds_are_texts_or_what_a_file_holds(tmp_path: Path) -> None:
    text = load(
        command_line={"score_bounds": "reward=-1:1,bleu=0:100", "tasks": "gsm8k, ifeval", "include_path": "a,b"}
    )
    file = load(file=experiment(tmp_path, "score_bounds: {reward: [-1, 1], bleu: [0, 100]}\ntasks: [gsm8k, ifeval]\n"))
    assert text.score_bounds == file.score_bounds == {"reward": (-1.0, 1.0), "bleu": (0.0, 100.0)}
    assert text.tasks == file.tasks == ("gsm8k", "ifeval")
    assert text.include_path == (Path("a"), Path("b"))


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("margn: 1", UnknownSetting, "margin"),
        ("num-fewshots: 1", UnknownSetting, "num_fewshot"),
        ("zzz: 1", UnknownSetting, "Known: baseline"),
        ("margin: wide", InvalidValue, "margin"),
        ("api_key: sk-secret", UnknownSetting, "QUALAB_API_KEY"),
        ("- a list", UsageError, "qualab init"),
        ("a: [1", UsageError, "line 1"),
        ("seed: 1\nmargin: : 2", UsageError, "line 2"),
        ("seed: 1\nmargin: 0.1\nmargin: 0.2", UsageError, "line 3: 'margin' is given twice"),
        ("margins:\n  image: a\n  image: b", UsageError, "line 3: 'image' is given twice"),
        ('{"qualab_plan": 1, "experiment": {"seed": 1, "seed": 2}}', UsageError, "line 1: 'seed' is given twice"),
        ('gen_kwargs: \'{"top_p": 1, "top_p": 2}\'', InvalidValue, "'top_p' is given twice"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, kind: type[UsageError], says: str) -> None:
    with pytest.raises(kind) as error:
        load(file=experiment(tmp_path, text))
    assert says in str(error.value)
    assert "sk-secret" not in str(error.value)
    with pytest.raises(UsageError, match=r"nowhere\.yaml"):
        load(file=tmp_path / "nowhere.yaml")


def test_keys_come_from_the_environment_or_a_file_and_an_arms_own_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keys_of(load()) == {ArmName.BASELINE: None, ArmName.CANDIDATE: None}
    (tmp_path / "key").write_text("from-file\n", encoding="utf-8")
    monkeypatch.setenv("QUALAB_CANDIDATE_API_KEY", "own-secret")
    settings = load(command_line={"api_key_file": tmp_path / "key"})
    assert keys_of(settings) == {ArmName.BASELINE: "from-file", ArmName.CANDIDATE: "own-secret"}
    assert "own-secret" not in repr(settings)


def test_the_example_file_holds_only_known_settings_and_loads(tmp_path: Path) -> None:
    from qualab.cli.pair import EXAMPLES

    example = (EXAMPLES / "experiment.yaml").read_text(encoding="utf-8")
    settings = load(file=experiment(tmp_path, example))
    assert isinstance(settings, Settings)
    commented = re.findall(r"^# ([a-z_]+): ", example, flags=re.MULTILINE)
    assert "data_dir" in commented
    assert set(commented) <= {*FIELDS, *GROUPS}


def test_settings_with_a_description_are_options_of_run_or_plan_and_the_database_of_every_command() -> None:
    from qualab.cli.main import load_command
    from qualab.cli.options import Database

    options = {option.name: option for name in ("plan", "run") for option in load_command(name).params}
    for name in OPTIONS:
        assert options[name].opts == [f"--{name.replace('_', '-')}"]
        assert options[name].help == Settings.model_fields[name].description
    [option] = get_args(Database)[1:]
    assert option.help == Settings.model_fields["db"].description


@pytest.mark.parametrize("name", ["QUALAB_DB", "qualab_db"])
@pytest.mark.parametrize("given", [None, "", "given.db"])
def test_a_command_without_other_settings_finds_the_same_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for named in (None, "", "named.db"):
        if named is not None:
            monkeypatch.setenv(name, named)
        assert location_of(given) == location_of(load(command_line={"db": given}).db)
