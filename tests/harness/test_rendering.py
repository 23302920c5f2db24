"""Prompts: exactly lm-eval's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qualab.errors import InvalidValue
from qualab.harness.tasks import as_json, overridden, resolved
from qualab.model.items import cluster_of
from qualab.model.names import RequestKind
from qualab.model.ports import TaskOptions
from tests.harness.in_process import LmEvalHarness, LoadedTasks, by_task


def load(harness: LmEvalHarness, data: Path | None, *names: str, **options: Any) -> LoadedTasks:
    return harness.load(TaskOptions(names=names, data_dir=data, **options))


def built_by_lm_eval(
    loaded: LoadedTasks, name: str, *, seed: int, **options: Any
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Document and arguments of every request, from lm-eval's build_all_requests itself."""
    task = loaded.loaded[name].task
    task.set_fewshot_seed(seed=seed)
    task.build_all_requests(**options)
    for instance in task.instances:
        yield instance.doc_id, instance.args


@pytest.fixture(autouse=True)
def _quiet_lm_eval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="lm_eval")


@pytest.mark.parametrize("suite", ["published-34", "release"])
@pytest.mark.parametrize("num_fewshot", [None, 3])
def test_prompts_are_those_that_lm_eval_builds(
    harness: LmEvalHarness, tiny_data_with_shots: Path, suite: str, num_fewshot: int | None
) -> None:
    loaded = load(harness, tiny_data_with_shots, suite, num_fewshot=num_fewshot, seed=99, apply_chat_template=False)
    n_prompts = 0
    for name, items in by_task(loaded).items():
        expected = list(built_by_lm_eval(loaded, name, seed=99))
        found = [(item.doc_id, prompt) for item in items for prompt in item.prompts]
        assert [(doc_id, args[0]) for doc_id, args in expected] == [(doc_id, prompt.text) for doc_id, prompt in found]
        if items[0].kind is RequestKind.LOGLIKELIHOOD:
            assert [args[1] for _, args in expected] == [prompt.continuation for _, prompt in found]
        n_prompts += len(found)
    assert n_prompts > 50


def test_chat_messages_are_those_that_lm_eval_builds(harness: LmEvalHarness, tiny_data: Path) -> None:
    options = {"apply_chat_template": True, "system_instruction": "Be brief."}
    loaded = load(harness, tiny_data, "gsm8k", "kobest_boolq_gen", **options, seed=5)
    for name, items in by_task(loaded).items():
        expected = built_by_lm_eval(loaded, name, seed=5, chat_template=as_json, fewshot_as_multiturn=True, **options)
        assert [args[0] for _, args in expected] == [item.prompts[0].text for item in items]
        assert all(item.prompts[0].is_chat for item in items)


def test_few_shot_examples_are_turns_of_the_chat_and_log_likelihoods_never_chat(
    harness: LmEvalHarness, tiny_data: Path
) -> None:
    loaded = load(harness, tiny_data, "gsm8k", apply_chat_template=True, system_instruction="Be brief.")
    assert loaded.applies_chat_template
    messages = json.loads(next(loaded.render()).prompts[0].text)
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 5, "user"]
    assert messages[0]["content"] == "Be brief."
    plain, chat = (load(harness, tiny_data, "kobest", apply_chat_template=one).render() for one in (None, True))
    assert [item.prompts for item in chat] == [item.prompts for item in plain]


def test_few_shot_draws_are_the_same_for_the_same_seed_alone(harness: LmEvalHarness, tiny_data: Path) -> None:
    loaded = load(harness, tiny_data, "gsm8k", seed=1)
    first, again = list(loaded.render()), list(loaded.render())
    assert first == again
    assert list(load(harness, tiny_data, "gsm8k", seed=1).render()) == first
    assert list(load(harness, tiny_data, "gsm8k", seed=1, limit=3).render()) == first[:3]
    others = list(load(harness, tiny_data, "gsm8k", seed=2).render())
    assert all(one.prompts[0].text != other.prompts[0].text for one, other in zip(first, others, strict=True))


def test_items_carry_document_target_choices_and_position(harness: LmEvalHarness, tiny_data: Path) -> None:
    items = list(load(harness, tiny_data, "kobest_hellaswag", "gsm8k").render())
    assert [item.position for item in items] == list(range(len(items)))
    assert [item.id for item in items[:2]] == ["kobest_hellaswag/0", "kobest_hellaswag/1"]
    first = items[0]
    assert first.target == "0"
    assert first.doc["choices"] == ["끝 1 0", "끝 2 0", "끝 3 0", "끝 4 0"]
    assert [prompt.continuation for prompt in first.prompts] == [f" {choice}" for choice in first.doc["choices"]]
    assert first.requests == ()
    assert json.loads(json.dumps(first.doc)) == first.doc


def test_clusters_are_shared_where_the_catalog_says(harness: LmEvalHarness, tiny_data: Path) -> None:
    items = by_task(load(harness, tiny_data, "kobest_wic", "belebele_kor_Hang", "gsm8k"))
    assert [item.cluster for item in items["kobest_wic"]] == ["낱말0"] * 3 + ["낱말1"] * 3
    assert len({item.cluster for item in items["belebele_kor_Hang"]}) == 3
    assert {item.cluster for item in items["gsm8k"]} == {""}
    long, joint = cluster_of({"a": "x" * 65}, ["a"]), cluster_of({"a": "1", "b": "2"}, ["a", "b"])
    assert len(long) == len(joint) == 16
    assert joint != cluster_of({"a": "12", "b": ""}, ["a", "b"])


def test_generation_settings_are_resolved() -> None:
    assert resolved({}) == {"until": [], "max_gen_toks": 256, "temperature": 0.0, "do_sample": False}
    assert resolved({"until": "Q:", "max_tokens": 9, "max_gen_toks": 5, "top_p": 0.9})["max_gen_toks"] == 9
    sampled = {"temperature": 1, "do_sample": True, "top_p": 0.9}
    assert resolved({"until": "Q:", **sampled}) == {"until": ["Q:"], "max_gen_toks": 256, **sampled}
    for name, value in (("temperature", "warm"), ("temperature", [1]), ("max_gen_toks", "many"), ("until", 5)):
        with pytest.raises(InvalidValue, match=name):
            resolved({name: value})
    # a user's token limit replaces the task's under any name
    assert overridden({"max_gen_toks": 5, "until": ["a"]}, {"max_tokens": 7}) == {"until": ["a"], "max_tokens": 7}
    assert overridden({"max_tokens": 5}, {"temperature": 1}) == {"max_tokens": 5, "temperature": 1}


def test_gen_kwargs_override_generations_and_change_the_task_s_hash(harness: LmEvalHarness, tiny_data: Path) -> None:
    plain = load(harness, tiny_data, "gsm8k", "kobest_boolq")
    warm = load(harness, tiny_data, "gsm8k", "kobest_boolq", gen_kwargs={"temperature": 0.7, "max_gen_toks": 64})
    settings = by_task(warm)["gsm8k"][0].prompts[0].gen_kwargs
    assert settings is not None
    assert (settings["temperature"], settings["max_gen_toks"]) == (0.7, 64)
    assert settings["until"] == ["Question:", "</s>", "<|im_end|>"]
    assert warm.tasks[0].config_hash != plain.tasks[0].config_hash
    assert warm.tasks[1] == plain.tasks[1]
