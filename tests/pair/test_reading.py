from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qualab.cli.pair import EXAMPLES
from qualab.errors import InvalidValue, QualabError, UnknownSetting, UsageError
from qualab.managed.pair import ServedPair, read_pair
from qualab.model.names import ArmName

EXAMPLE = (EXAMPLES / "pair.yaml").read_text(encoding="utf-8")
SMALL = """\
model: org/model
speculative_config: {method: ngram, num_speculative_tokens: 4}
args:
  max_model_len: 512
env:
  OMP_NUM_THREADS: 1
baseline:
  port: 8000
candidate:
  port: 8001
"""
LENGTH, PORT = "max_model_len: 512", "  port: 8001"


def read(folder: Path, text: str) -> ServedPair:
    path = folder / "pair.yaml"
    path.write_text(text)
    return read_pair(path)


def refused(folder: Path, text: str) -> QualabError:
    with pytest.raises(UsageError) as caught:
        read(folder, text)
    return caught.value


def test_what_is_not_said_has_a_default(tmp_path: Path) -> None:
    pair = read(tmp_path, SMALL)
    assert (pair.served_model_name, pair.command, pair.log_dir) == ("org/model", ("vllm", "serve"), Path("pair-logs"))
    assert pair.url(ArmName.CANDIDATE) == "http://127.0.0.1:8001/v1"
    assert (pair.env, pair.baseline.gpus) == ({"OMP_NUM_THREADS": "1"}, None)
    assert pair.shares_a_device
    for host in ("0.0.0.0", "::"):
        everywhere = read(tmp_path, f"{SMALL}host: '{host}'\n")
        assert everywhere.url(ArmName.BASELINE) == "http://127.0.0.1:8000/v1", "it is reached on this machine"


def test_the_example_is_a_pair_and_each_line_that_is_commented_out_a_known_key(tmp_path: Path) -> None:
    pair = read(tmp_path, EXAMPLE)
    assert pair.speculative_config["method"] == "ngram"
    assert (pair.baseline.gpus, pair.candidate.gpus) == (("0",), ("1",))
    assert not pair.shares_a_device
    text = EXAMPLE.replace("# image: ", "image: ").replace("# command: [vllm, serve] ", "command: [vllm, serve] ")
    for key in ("host", "log_dir", "ready_timeout"):
        text = text.replace(f"# {key}: ", f"{key}: ")
    assert read(tmp_path, text).image.startswith("vllm/vllm-openai@")


FLAGS: list[tuple[Any, list[str]]] = [
    (True, ["--some-flag"]),
    (False, ["--no-some-flag"]),
    (0.45, ["--some-flag", "0.45"]),
    ("auto", ["--some-flag", "auto"]),
    (["a", "b"], ["--some-flag", "a", "b"]),
    ({"level": 3}, ["--some-flag", '{"level": 3}']),
]


def test_args_become_flags(tmp_path: Path) -> None:
    for name in ("some_flag", "some-flag", "--some-flag"):
        for value, words in FLAGS:
            pair = read(tmp_path, SMALL.replace(LENGTH, f"{name}: {json.dumps(value)}"))
            assert list(pair.arguments(ArmName.BASELINE, host="h", port=1)[7:]) == words


DIFFERING = "line 11: candidate must not have max_model_len: the arms differ in speculative_config alone"
THREADS = "line 11: OMP_NUM_THREADS must not differ between the arms"
WRONG = [
    ("args:", "arg:", "line 3: unknown key arg", "Did you mean args?"),
    ("model: org", "modle: org", "line 1: unknown key modle", "Did you mean model?"),
    (PORT, "  prot: 8001", "line 10: unknown key prot", "Did you mean port?"),
    (PORT, f"{PORT}\n  max_model_len: 9", DIFFERING, "for both arms belong at the top"),
    (PORT, f"{PORT}\n  env: {{OMP_NUM_THREADS: 2}}", THREADS, "VLLM_CPU_OMP_THREADS_BIND"),
    (PORT, f"{PORT}\n  gpus: [0, 1]", "line 11: the arms have different numbers of GPUs", "as many"),
    (PORT, "  port: eight", "line 10: candidate.port: Input should be a valid integer", "'eight'"),
    (PORT, "  port: 80010", "line 10: candidate.port: Input should be less than", "80010"),
    (PORT, "  gpus: '1'", "line 9: candidate.port is missing", "pair init"),
    ("OMP_NUM_THREADS: 1", "VLLM_API_KEY: abc", "line 6: VLLM_API_KEY must not be in a file", "environment"),
    ("OMP_NUM_THREADS: 1", "HF_TOKEN: abc", "line 6: HF_TOKEN must not be in a file", "environment"),
    ("OMP_NUM_THREADS: 1", "X: true", "line 6: env.X: Input should be a valid string", "True"),
    (LENGTH, "max_model_len:", "line 4: max_model_len has no value", "`true`"),
    (LENGTH, f"{LENGTH}\n  max-model-len: 1", "line 5: max-model-len is given twice, with dashes", ""),
    (PORT, f"{PORT}\n  port: 8002", "line 11: 'port' is given twice", ""),
    ("{method: ngram, num_speculative_tokens: 4}", "{}", "line 2: speculative_config", ""),
    ("args:", "args: [", "is not YAML", "pair init"),
]


@pytest.mark.parametrize(("old", "new", "says", "hint"), WRONG)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, says: str, hint: str) -> None:
    assert old in SMALL
    error = refused(tmp_path, SMALL.replace(old, new))
    assert says in error.message
    assert hint in error.hint
    assert "\n" not in error.message


def test_unknown_keys_wrong_values_and_missing_files_are_different_errors(tmp_path: Path) -> None:
    assert isinstance(refused(tmp_path, SMALL + "modell: x\n"), UnknownSetting)
    assert isinstance(refused(tmp_path, SMALL + "ready_timeout: 0\n"), InvalidValue)
    with pytest.raises(UsageError, match=r"Cannot read .*none\.yaml: No such file"):
        read_pair(tmp_path / "none.yaml")


OF_THE_DRAFTER = (
    *("speculative_config", "speculative-config", "speculative_config.method", "speculative", "spec-method"),
    *("spec_model", "sc", "--spec-tokens", "no-spec"),
)
SET_ELSEWHERE = ("port", "host", "model", "revision", "served_model_name", "config", "api_key", "api")


def test_a_drafter_for_both_arms_and_flags_that_are_set_elsewhere_are_refused(tmp_path: Path) -> None:
    for flag in (*OF_THE_DRAFTER, *SET_ELSEWHERE):
        error = refused(tmp_path, SMALL.replace(LENGTH, f"{flag}: x"))
        assert f"line 4: args must not have {flag}: " in error.message
        assert ("it would be in both arms" in error.message) is (flag in OF_THE_DRAFTER)
    # flags that only begin alike are taken
    for flag in ("model_impl", "hf_overrides", "seed", "scheduling_policy", "config_format", "dtype"):
        assert read(tmp_path, SMALL.replace(LENGTH, f"{flag}: x")).args == {flag.replace("_", "-"): "x"}


DEVICES = {"gpus: '0,1'": "0,1", "gpus: [0, 1]": "0,1", "env: {CUDA_VISIBLE_DEVICES: '0, 1'}": "0,1", "gpus: []": ""}


def test_gpus_are_device_ids(tmp_path: Path) -> None:
    for text, visible in DEVICES.items():
        lines = SMALL.replace("  port: 8000", f"  port: 8000\n  {text}").replace(PORT, f"{PORT}\n  {text}")
        variables = read(tmp_path, lines).variables(ArmName.BASELINE)
        assert variables == {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": visible}


def test_a_name_on_the_hub_without_a_revision_floats(tmp_path: Path) -> None:
    for model, revision in (("org/model", ""), ("org/model", "0123abc"), ("/data/model", ""), ("./model", "")):
        pair = read(tmp_path, SMALL.replace("model: org/model", f"model: {model}\nrevision: '{revision}'"))
        assert pair.is_floating is (model == "org/model" and not revision)
