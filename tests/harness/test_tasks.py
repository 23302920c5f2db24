"""Prompts, scores and aggregates: exactly lm-eval's own, and the same whenever the same text is scored."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qualab.errors import HarnessError, InvalidValue
from qualab.harness.tasks import as_json, overridden, resolved
from qualab.model.items import Item, cluster_of
from qualab.model.names import RequestKind
from tests.app.fakes import reply
from tests.harness.conftest import Load, LoadedTasks, by_task
from tests.harness.test_own_tasks import CUSTOM, load_own, own


def built_by_lm_eval(loaded: LoadedTasks, name: str, *, seed: int, **options: Any) -> list[tuple[int, Any]]:
    """Document and arguments of every request, from lm-eval's build_all_requests itself."""
    task = loaded.loaded[name].task
    task.set_fewshot_seed(seed=seed)
    task.build_all_requests(**options)
    return [(instance.doc_id, instance.args) for instance in task.instances]


@pytest.fixture(autouse=True)
def _quiet_lm_eval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="lm_eval")


@pytest.mark.parametrize("suite", ["published-34", "release"])
@pytest.mark.parametrize("num_fewshot", [None, 3])
def test_prompts_are_those_that_lm_eval_builds(load: Load, suite: str, num_fewshot: int | None) -> None:
    loaded = load(suite, num_fewshot=num_fewshot, seed=99, apply_chat_template=False)
    n_prompts = 0
    for name, items in by_task(loaded).items():
        expected = built_by_lm_eval(loaded, name, seed=99)
        found = [(item.doc_id, prompt) for item in items for prompt in item.prompts]
        assert [(doc_id, args[0]) for doc_id, args in expected] == [(doc_id, prompt.text) for doc_id, prompt in found]
        if items[0].kind is RequestKind.LOGLIKELIHOOD:
            assert [args[1] for _, args in expected] == [prompt.continuation for _, prompt in found]
        n_prompts += len(found)
    assert n_prompts > 50


def test_chat_messages_are_those_that_lm_eval_builds_and_log_likelihoods_never_chat(load: Load) -> None:
    options = {"apply_chat_template": True, "system_instruction": "Be brief."}
    loaded = load("gsm8k", "kobest_boolq_gen", **options, seed=5)
    assert loaded.applies_chat_template
    for name, items in by_task(loaded).items():
        expected = built_by_lm_eval(loaded, name, seed=5, chat_template=as_json, fewshot_as_multiturn=True, **options)
        assert [args[0] for _, args in expected] == [item.prompts[0].text for item in items]
        assert all(item.prompts[0].is_chat for item in items)
    messages = json.loads(by_task(loaded)["gsm8k"][0].prompts[0].text)
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 5, "user"]
    assert messages[0]["content"] == "Be brief."
    plain, chat = (load("kobest", apply_chat_template=one).render() for one in (None, True))
    assert [item.prompts for item in chat] == [item.prompts for item in plain]


def test_few_shot_draws_are_the_same_for_the_same_seed_alone(load: Load) -> None:
    loaded = load("gsm8k", seed=1)
    first = list(loaded.render())
    assert list(loaded.render()) == first
    assert list(load("gsm8k", seed=1).render()) == first
    assert list(load("gsm8k", seed=1, limit=3).render()) == first[:3]
    others = list(load("gsm8k", seed=2).render())
    assert all(one.prompts[0].text != other.prompts[0].text for one, other in zip(first, others, strict=True))


def test_items_carry_document_target_choices_position_and_the_cluster_of_the_catalog(load: Load) -> None:
    items = list(load("kobest_hellaswag", "gsm8k").render())
    assert [item.position for item in items] == list(range(len(items)))
    assert [item.id for item in items[:2]] == ["kobest_hellaswag/0", "kobest_hellaswag/1"]
    first, choices = items[0], ["끝 1 0", "끝 2 0", "끝 3 0", "끝 4 0"]
    assert (first.target, first.doc["choices"], first.requests) == ("0", choices, ())
    assert [prompt.continuation for prompt in first.prompts] == [f" {choice}" for choice in choices]
    assert json.loads(json.dumps(first.doc)) == first.doc
    clustered = by_task(load("kobest_wic", "belebele_kor_Hang", "gsm8k"))
    assert [item.cluster for item in clustered["kobest_wic"]] == ["낱말0"] * 3 + ["낱말1"] * 3
    assert len({item.cluster for item in clustered["belebele_kor_Hang"]}) == 3
    assert {item.cluster for item in clustered["gsm8k"]} == {""}
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


def test_gen_kwargs_override_generations_and_change_the_task_s_hash(load: Load) -> None:
    plain = load("gsm8k", "kobest_boolq")
    warm = load("gsm8k", "kobest_boolq", gen_kwargs={"temperature": 0.7, "max_gen_toks": 64})
    settings = by_task(warm)["gsm8k"][0].prompts[0].gen_kwargs
    assert settings is not None
    assert (settings["temperature"], settings["max_gen_toks"]) == (0.7, 64)
    assert settings["until"] == ["Question:", "</s>", "<|im_end|>"]
    assert warm.tasks[0].config_hash != plain.tasks[0].config_hash
    assert warm.tasks[1] == plain.tasks[1]


@pytest.fixture(scope="module")
def loaded(load: Load) -> LoadedTasks:
    return load("published-34")


@pytest.fixture(scope="module")
def items(loaded: LoadedTasks) -> dict[str, list[Item]]:
    return by_task(loaded)


def score(loaded: LoadedTasks, item: Item, text: str) -> dict[str, Any]:
    return loaded.score(item.task, [(item, [reply(text)])])[0]


def test_both_filters_of_gsm8k_score_and_tell_what_they_take_out(
    loaded: LoadedTasks, items: dict[str, list[Item]]
) -> None:
    first, second = items["gsm8k"][:2]
    strict, flexible = "exact_match,strict-match", "exact_match,flexible-extract"
    assert score(loaded, second, "So it is 1+2.\n#### 3") == {strict: 1.0, flexible: 1.0}
    assert score(loaded, second, "So it is 3") == {strict: 0.0, flexible: 1.0}
    assert score(loaded, second, "") == {strict: 0.0, flexible: 0.0}
    mixed = [(item, [reply(f"#### {2 * item.doc_id + 1}" if item.doc_id % 2 else "no")]) for item in items["gsm8k"]]
    assert [row[strict] for row in loaded.score("gsm8k", mixed[::-1])] == [1.0, 0.0] * 4, "in the answers' order"
    answered = [(first, [reply("So it is 7")]), (second, [reply("So it is 1+2.\n#### 3")])]
    extracted = {name: [own[0] for own in found] for name, found in loaded.extracted("gsm8k", answered)}
    assert extracted == {"strict-match": ["[invalid]", "3"], "flexible-extract": ["7", "3"]}
    assert list(loaded.extracted("ifeval", [(items["ifeval"][0], [reply("Yes.")])])) == [("none", [["Yes."]])]


def test_multiple_choice_and_instructions_have_lm_eval_s_forms(
    loaded: LoadedTasks, items: dict[str, list[Item]]
) -> None:
    item = items["kobest_hellaswag"][1]
    scored = [reply(text=None, loglikelihood=one, is_greedy=False) for one in (-5.0, -1.0, -9.0, -7.0)]
    (found,) = loaded.score(item.task, [(item, scored)])
    assert found == {"acc,none": 1.0, "acc_norm,none": 1.0, "f1,none": (1, 1)}
    assert [type(part) for part in found["f1,none"]] == [int, int]
    found = score(loaded, items["ifeval"][1], "The river is wide.")
    assert found["inst_level_strict_acc,none"] == [True, False]
    assert found["prompt_level_strict_acc,none"] is False


def test_random_letters_and_detected_languages_score_the_same(load: Load, items: dict[str, list[Item]]) -> None:
    item = items["ifeval"][2]
    assert item.doc["key"] == 1122
    texts = [letter * 4 for letter in "abcdefghijklmnopqrstuvwxyz"]

    def scores(order: Sequence[str]) -> dict[str, bool]:
        fresh = load("ifeval")
        random.seed()
        return {text: score(fresh, item, text)["prompt_level_strict_acc,none"] for text in order}

    first = scores(texts)
    assert sum(first.values()) == 1
    assert scores(list(reversed(texts))) == first
    assert scores(texts[13:] + texts[:13]) == first
    text = "an mir is das in on no"  # short, and of several languages: unseeded, it comes out this way and that
    detected = [score(fresh, items["ifeval"][3], text) for fresh in (load("ifeval"), load("ifeval")) for _ in range(10)]
    assert len({row["prompt_level_strict_acc,none"] for row in detected}) == 1


def test_what_cannot_be_scored_is_named(loaded: LoadedTasks, items: dict[str, list[Item]], tmp_path: Path) -> None:
    code = 'def points(doc, results):\n    return {"points": 1 / len(results[0])}\n'
    own_tasks = load_own(own(tmp_path, CUSTOM, code=code))
    item = next(own_tasks.render())
    for task, text, reason in (
        ("mine", "", r"mine/0.*ZeroDivisionError"),
        ("mine", None, "mine/0 has no text"),
        ("theirs", "", "theirs is not loaded"),
    ):
        with pytest.raises(HarnessError, match=reason):
            own_tasks.score(task, [(item, [reply(text)])])
    assert own_tasks.score("mine", []) == []
    with pytest.raises(HarnessError, match="kobest_boolq/0 has no log-likelihood"):
        loaded.score("kobest_boolq", [(items["kobest_boolq"][0], [reply("a"), reply("b")])])


def test_a_group_is_the_size_weighted_mean_of_its_members_and_no_items_have_none(loaded: LoadedTasks) -> None:
    boolq = {"acc,none": [1.0, 0.0, 0.0, 0.0], "f1,none": [(0, 0), (1, 0), (1, 0), (0, 1)]}
    found = loaded.aggregate({"kobest_boolq": boolq, "kobest_wic": {"acc,none": [1.0, 1.0]}})
    assert found["kobest_boolq"]["acc,none"] == 0.25
    assert found["kobest"]["acc,none"] == (0.25 * 4 + 1.0 * 2) / 6
    assert found["kobest_boolq"]["f1,none"] == pytest.approx((2 / 5 + 0.0) / 2)
    assert list(found) == ["kobest", "kobest_boolq", "kobest_wic"]
    instructions = {"ifeval": {"inst_level_strict_acc,none": [[True], [False, False, True]]}}
    assert loaded.aggregate(instructions) == {"ifeval": {"inst_level_strict_acc,none": 0.5}}
    columns = {"exact_match,strict-match": [], "exact_match,flexible-extract": [1.0]}
    assert loaded.aggregate({"gsm8k": columns}) == {"gsm8k": {"exact_match,flexible-extract": 1.0}}
    assert loaded.aggregate({"kobest_boolq": {"acc,none": []}}) == loaded.aggregate({}) == {}
    with pytest.raises(HarnessError, match="theirs"):
        loaded.aggregate({"theirs": {"acc,none": [1.0]}})
