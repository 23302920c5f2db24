"""How texts are packed: nothing is lost, and a dictionary of a comparison's own prompts pays."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualab.model.items import Prompt
from qualab.model.names import RequestKind
from qualab.model.wording import storable_text, valid_text
from qualab.store.texts import ASCII, OTHER, TextCodec, script_of
from qualab.store.training import DictionarySampler
from tests.store.samples import HARD_TEXTS, make_item

ENGLISH = "the quick brown fox jumps over lazy dogs while counting apples and oranges in seven baskets"
KOREAN = "그녀는 아침마다 시장에서 사과 다섯 개와 배를 사고 남은 돈으로 친구에게 줄 빵을 만든다 그래서 정답은"


def sentence(words: str, rng: random.Random, length: int = 40) -> str:
    return " ".join(rng.choice(words.split()) for _ in range(length)) + f" {rng.randrange(1_000)}"


def trained(languages: list[str], *, n_items: int = 300, answers_an_item: int = 2) -> dict[int, bytes]:
    rng = random.Random(1)
    sampler = DictionarySampler(answers_an_item=answers_an_item)
    for position in range(n_items):
        words = languages[position % len(languages)]
        sampler.see(make_item(position, prompts=(Prompt(text=sentence(words, rng)),), target=sentence(words, rng, 9)))
    return sampler.train()


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(trained([ENGLISH, KOREAN]))


@given(text=st.text(), twin=st.none() | st.text())
def test_any_text_comes_back(text: str, twin: str | None, codec: TextCodec) -> None:
    packed_twin = None if twin is None else codec.packer.pack(twin)
    packed = codec.packer.pack(text, packed_twin)
    assert codec.unpacker.unpack(packed, packed_twin) == text


@given(shared=st.text(), rest=st.text(), other=st.text())
def test_texts_that_begin_alike_come_back(shared: str, rest: str, other: str, codec: TextCodec) -> None:
    twin = codec.packer.pack(shared + other)
    packed = codec.packer.pack(shared + rest, twin)
    assert codec.unpacker.unpack(packed, twin) == shared + rest


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_texts_come_back_without_a_dictionary(text: str) -> None:
    plain = TextCodec({})
    assert plain.unpacker.unpack(plain.packer.pack(text)) == text


def test_texts_longer_than_the_shared_length_can_say(codec: TextCodec) -> None:
    text = "0123456789" * 10_000
    twin = codec.packer.pack(text)
    packed = codec.packer.pack(text + "end", twin)
    assert codec.unpacker.unpack(packed, twin) == text + "end"


def test_the_same_text_in_the_other_arm_costs_next_to_nothing(codec: TextCodec) -> None:
    text = sentence(KOREAN, random.Random(5))
    twin = codec.packer.pack(text)
    assert len(codec.packer.pack(text, twin)) <= 4


def test_a_text_that_leaves_the_others_way_half_way_costs_half(codec: TextCodec) -> None:
    text, other = sentence(ENGLISH, random.Random(6), 80), sentence(ENGLISH, random.Random(7), 80)
    half = len(text) // 2
    whole = len(codec.packer.pack(text))
    assert len(codec.packer.pack(text[:half] + other[half:], codec.packer.pack(text))) < 0.7 * whole


@pytest.mark.parametrize(("words", "script"), [(ENGLISH, ASCII), (KOREAN, OTHER)], ids=["English", "Korean"])
def test_a_dictionary_makes_unseen_texts_smaller(words: str, script: int, codec: TextCodec) -> None:
    rng = random.Random(99)
    texts = [sentence(words, rng) for _ in range(50)]
    assert {script_of(text, text.encode()) for text in texts} == {script}
    with_dictionary = sum(len(codec.packer.pack(text)) for text in texts)
    assert with_dictionary < 0.6 * sum(len(TextCodec({}).packer.pack(text)) for text in texts)


def test_what_does_not_compress_costs_one_byte(codec: TextCodec) -> None:
    text = "".join(chr(code) for code in random.Random(3).sample(range(0xAC00, 0xD7A3), 200))
    assert len(codec.packer.pack(text)) <= len(text.encode()) + 1
    assert len(codec.packer.pack("B")) == 2
    assert len(codec.packer.pack("")) == 1


def test_each_script_gets_a_dictionary_of_its_own() -> None:
    assert set(trained([ENGLISH, KOREAN])) == {ASCII, OTHER}
    assert set(trained([KOREAN])) == {OTHER}
    assert set(trained([ENGLISH])) == {ASCII}


def test_a_dictionary_costs_an_answer_at_most_eight_bytes() -> None:
    for n_items in (200, 400):
        (dictionary,) = trained([ENGLISH], n_items=n_items).values()
        assert len(dictionary) <= 8 * 2 * n_items
    (larger,) = trained([ENGLISH], n_items=200, answers_an_item=8).values()
    assert 8 * 2 * 200 < len(larger) <= 65_536


def test_little_to_learn_from_makes_no_dictionary() -> None:
    assert trained([ENGLISH], n_items=3) == {}
    assert DictionarySampler(answers_an_item=2).train() == {}


def test_loglikelihood_items_train_nothing() -> None:
    sampler = DictionarySampler(answers_an_item=2)
    for position in range(300):
        text = sentence(ENGLISH, random.Random(position))
        sampler.see(make_item(position, kind=RequestKind.LOGLIKELIHOOD, prompts=(Prompt(text=text),)))
    assert sampler.train() == {}


def test_the_same_items_make_the_same_dictionary() -> None:
    assert trained([ENGLISH, KOREAN]) == trained([ENGLISH, KOREAN])


def test_a_chat_prompt_is_learnt_from_as_it_is_spoken() -> None:
    rng = random.Random(2)
    sampler = DictionarySampler(answers_an_item=2)
    for position in range(300):
        message = json.dumps([{"role": "user", "content": sentence(KOREAN, rng)}])  # Korean as \uXXXX
        sampler.see(make_item(position, prompts=(Prompt(text=message, is_chat=True),), target=""))
    assert set(sampler.train()) == {OTHER}


@given(text=st.text(alphabet=st.characters(categories=("Cs", "Lu", "Lo"), include_characters="\x00🧪")))
def test_valid_text_can_always_be_encoded(text: str) -> None:
    valid = valid_text(text)
    assert valid.encode().decode() == valid
    assert "\x00" not in storable_text(text)
    assert valid_text(valid) == valid
