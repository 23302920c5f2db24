"""What pair.yaml is read as, and what `qualab pair render` writes: by schema, and by what the arms have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import Draft202012Validator

from qualab.cli.pair import EXAMPLES
from qualab.errors import InvalidValue, QualabError, UnknownSetting, UsageError
from qualab.managed.manifests import render_compose, render_kubernetes
from qualab.managed.pair import Placement, ServedPair, read_pair
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
    assert isinstance(refused(tmp_path, SMALL + "modell: x\n"), UnknownSetting)
    assert isinstance(refused(tmp_path, SMALL + "ready_timeout: 0\n"), InvalidValue)
    with pytest.raises(UsageError, match=r"Cannot read .*none\.yaml: No such file"):
        read_pair(tmp_path / "none.yaml")
    # flags that only begin alike are taken
    for flag in ("model_impl", "hf_overrides", "seed", "scheduling_policy", "config_format", "dtype"):
        assert read(tmp_path, SMALL.replace(LENGTH, f"{flag}: x")).args == {flag.replace("_", "-"): "x"}


DEVICES = {"gpus: '0,1'": "0,1", "gpus: [0, 1]": "0,1", "env: {CUDA_VISIBLE_DEVICES: '0, 1'}": "0,1", "gpus: []": ""}


def test_gpus_are_device_ids_and_a_name_on_the_hub_without_a_revision_floats(tmp_path: Path) -> None:
    for text, visible in DEVICES.items():
        lines = SMALL.replace("  port: 8000", f"  port: 8000\n  {text}").replace(PORT, f"{PORT}\n  {text}")
        variables = read(tmp_path, lines).variables(ArmName.BASELINE)
        assert variables == {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": visible}
    for model, revision in (("org/model", ""), ("org/model", "0123abc"), ("/data/model", ""), ("./model", "")):
        pair = read(tmp_path, SMALL.replace("model: org/model", f"model: {model}\nrevision: '{revision}'"))
        assert pair.is_floating is (model == "org/model" and not revision)


IMAGE = "vllm/vllm-openai@sha256:" + "0123456789abcdef" * 4
DRAFTER = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}']
PAIR = ServedPair(
    model="org/model",
    revision="0123abc",
    served_model_name="tiny",
    image=IMAGE,
    speculative_config={"method": "ngram", "num_speculative_tokens": 4},
    args={"max-model-len": 512, "enforce-eager": True},
    env={"OMP_NUM_THREADS": "1"},
    baseline=Placement(port=8000, gpus=("0",), env={"VLLM_CPU_OMP_THREADS_BIND": "0-15"}),
    candidate=Placement(port=8001, gpus=("1",), env={"VLLM_CPU_OMP_THREADS_BIND": "16-31"}),
    command=("path/of/this/machine/vllm", "serve"),
    host="127.0.0.1",
    log_dir=Path("logs"),
    ready_timeout=895,
)


def replace(pair: ServedPair, **changes: Any) -> ServedPair:
    return pair.model_copy(update=changes)


ON_A_CPU = replace(PAIR, baseline=Placement(port=8000, gpus=()), candidate=Placement(port=8001, gpus=()))
LOCAL = replace(
    PAIR, model="/data/big/model/", speculative_config={"model": "/data/small/drafter", "num_speculative_tokens": 3}
)
AWKWARD = replace(
    PAIR, args={"chat-template": "{{ $(HOME) }} 안녕 $x"}, env={"TEXT": 'yes: "no" # $(HOME) $x'}, revision="1e5"
)
PAIRS = {"gpu": PAIR, "cpu": ON_A_CPU, "local": LOCAL, "awkward": AWKWARD}


def kubernetes(pair: ServedPair) -> dict[ArmName, list[dict[str, Any]]]:
    """Deployment and Service by arm."""
    files = render_kubernetes(pair)
    assert list(files) == ["baseline.yaml", "candidate.yaml"]
    return {arm: list(yaml.safe_load_all(files[f"{arm}.yaml"])) for arm in ArmName}


def containers(pair: ServedPair) -> list[dict[str, Any]]:
    return [deployment["spec"]["template"]["spec"]["containers"][0] for deployment, _ in kubernetes(pair).values()]


def services(pair: ServedPair) -> list[dict[str, Any]]:
    (text,) = render_compose(pair).values()
    return [yaml.safe_load(text)["services"][arm.value] for arm in ArmName]


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_manifests_are_valid_by_their_schemas_and_differ_in_the_drafter_alone(pair: ServedPair) -> None:
    baseline, candidate = containers(pair)
    n_args = len(baseline["args"])
    assert candidate["args"][:n_args] == baseline["args"]
    assert [*candidate["args"][n_args : n_args + 1], len(candidate["args"])] == ["--speculative-config", n_args + 2]
    assert {**baseline, "args": []} == {**candidate, "args": []}
    (text,) = render_compose(pair).values()
    document, compose = yaml.safe_load(text), Draft202012Validator(get_builtin_schema("vendor.compose-spec"))
    assert [error.message for error in compose.iter_errors(document)] == []
    validator = pytest.importorskip("kubernetes_validate", reason="needs `make schemas` (the extra `manifests`)")
    for manifests in kubernetes(pair).values():
        assert [one["kind"] for one in manifests] == ["Deployment", "Service"]
        for manifest in manifests:
            validator.validate(manifest, validator.latest_version(), strict=True)
            with pytest.raises(validator.ValidationError):
                validator.validate({**manifest, "sepc": {}}, validator.latest_version(), strict=True)


def test_the_same_arguments_are_passed_by_both_kinds_of_manifest() -> None:
    for of_kubernetes, of_compose in zip(containers(PAIR), services(PAIR), strict=True):
        assert of_kubernetes["args"] == of_compose["command"]
        assert of_kubernetes["command"] == of_compose["entrypoint"] == ["vllm", "serve"]
        assert of_kubernetes["image"] == of_compose["image"] == IMAGE
    baseline = services(PAIR)[0]["command"]
    assert baseline == [
        *("org/model", "--host", "0.0.0.0", "--port", "8000", "--served-model-name", "tiny", "--revision", "0123abc"),
        *("--max-model-len", "512", "--enforce-eager"),
    ]
    assert services(PAIR)[1]["command"] == baseline + DRAFTER


def test_each_service_leads_to_its_own_deployment() -> None:
    for text in (*render_kubernetes(PAIR).values(), *render_compose(PAIR).values()):
        assert text.startswith("# Written by `qualab pair render`")
        assert "&id" not in text, "no references within the file"
    names = []
    for deployment, service in kubernetes(PAIR).values():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"] == labels == deployment["spec"]["selector"]["matchLabels"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
        names.append((deployment["metadata"]["name"], labels["app.kubernetes.io/component"]))
    assert names == [("qualab-baseline", "baseline"), ("qualab-candidate", "candidate")]


def test_each_arm_has_its_devices_port_and_place_and_the_ready_timeout_to_start() -> None:
    for container in containers(PAIR):
        startup = container["startupProbe"]
        assert startup["httpGet"] == container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
        assert startup["failureThreshold"] * startup["periodSeconds"] == 900
    for number, service in enumerate(services(PAIR)):
        assert "/health" in service["healthcheck"]["test"][-1]
        assert service["healthcheck"]["start_period"] == "895s"
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == [str(number)]
        assert service["ports"] == [f"127.0.0.1:800{number}:8000"]
        assert service["environment"]["VLLM_CPU_OMP_THREADS_BIND"] == ("0-15", "16-31")[number]
    anywhere = replace(PAIR, baseline=Placement(port=1), candidate=Placement(port=2))
    many = replace(anywhere, args={"tensor-parallel-size": 2, "pipeline-parallel-size": 2})
    for pair, count in ((PAIR, 1), (anywhere, 1), (many, 4), (ON_A_CPU, 0)):
        limits = {"limits": {"nvidia.com/gpu": str(count)}} if count else None
        assert [one.get("resources") for one in containers(pair)] == [limits] * 2
        assert [bool(one.get("deploy")) for one in services(pair)] == [count > 0] * 2


def test_the_hub_is_never_asked_keys_are_only_referred_to_and_dollars_stay_what_they_are() -> None:
    container = containers(PAIR)[0]
    env = {one["name"]: one for one in container["env"]}
    expected = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": "/models"}
    assert {name: env[name].get("value") for name in (*expected, "VLLM_API_KEY")} == expected | {"VLLM_API_KEY": None}
    assert env["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "qualab-pair"
    assert services(PAIR)[0]["environment"]["VLLM_API_KEY"] == "${VLLM_API_KEY:-}"
    assert container["volumeMounts"][0] == {"name": "models", "mountPath": "/models", "readOnly": True}
    assert containers(LOCAL)[0]["volumeMounts"][0]["mountPath"] == "/data"
    assert services(LOCAL)[1]["volumes"][0]["source"] == services(LOCAL)[1]["volumes"][0]["target"] == "/data"
    args, service = containers(AWKWARD)[0]["args"], services(AWKWARD)[0]
    assert {"{{ $$(HOME) }} 안녕 $x", "1e5"} <= {*args}
    assert "{{ $$(HOME) }} 안녕 $$x" in service["command"]
    assert service["environment"]["TEXT"] == 'yes: "no" # $$(HOME) $$x'


UNPINNED, DRAFTED = "not pinned by a digest", {"model": "org/drafter"}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"image": ""}, "No image is given", "imagetools inspect vllm/vllm-openai:TAG"),
    ({"image": "vllm/vllm-openai:v0.11"}, UNPINNED, "imagetools inspect vllm/vllm-openai:v0.11"),
    ({"image": "vllm/vllm-openai@sha256:12ab"}, UNPINNED, "image: NAME@sha256:DIGEST"),
    ({"model": "./model"}, "no relative paths", "absolute"),
    ({"model": "/model"}, "no folder around them", "one folder"),
    ({"model": "/data/model", "speculative_config": DRAFTED}, "one is a path", "both alike"),
]


def test_what_cannot_be_rendered_is_refused() -> None:
    for change, says, hint in REFUSED:
        for render in (render_kubernetes, render_compose):
            with pytest.raises(InvalidValue, match=says) as caught:
                render(replace(PAIR, **change))
            assert hint in caught.value.hint
