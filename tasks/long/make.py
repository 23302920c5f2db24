"""Items with long prompts, made by a fixed seed when they are loaded; a prompt's text when it is rendered.

A prompt is a sheaf of numbered notes with one task: find two codes, follow a chain of variables, copy one note, or
count a sentence. Lengths in tokens are estimated from characters: tokenizers differ.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import datasets

SEED = "long 1"
N_ITEMS = 160
EN, KO = LANGUAGES = "en", "ko"
CHARACTERS_A_TOKEN = {EN: 4.2, KO: 1.4}
"""Of this text in common multilingual vocabularies, so that prompts are rather shorter than they are called."""
SENTENCES_A_NOTE, CODE_DIGITS = 3, 5

FILLER = {
    EN: (
        "The lighthouse keeper|A retired postman|The baker's niece|An old cartographer|The night watchman|"
        "A travelling clockmaker|The ferry pilot|Their youngest neighbour|The choir's organist|"
        "A patient beekeeper|The museum guard|One of the gardeners|The stationmaster|A visiting botanist|"
        "The schoolteacher|The harbour clerk",
        "mended|painted|sold|found|polished|borrowed|sketched|measured|wrapped up|gave away|hid|repaired|weighed|"
        "admired|lost|described",
        "a rowing boat|the copper kettle|three woollen blankets|an unsigned letter|the garden gate|"
        "a crate of pears|two brass lanterns|the broken sundial|a box of candles|an atlas of rivers|"
        "the weather vane|a pair of oars|the parish ledger|some dried herbs|a mended violin|the spare keys",
        "behind the chapel|near the old mill|on the quay|in the orchard|under the stone bridge|at the market|"
        "beside the canal|in the attic|by the lime kiln|on the north pier|at the crossroads|in the reading room|"
        "along the sea wall|outside the bakery|at the edge of the wood|in the courtyard",
        "before breakfast|on a foggy morning|after the storm|late in the evening|on the first day of spring|"
        "while it rained|just before noon|during the fair|on a quiet Sunday|as the tide went out|"
        "at the end of the week|without telling anyone",
    ),
    KO: (
        "아침을 먹기 전에|안개 낀 새벽에|폭풍이 지나간 뒤에|저녁 늦게|봄이 시작되던 날|비가 내리는 동안|"
        "정오가 되기 직전에|장이 서던 날|조용한 일요일에|썰물이 빠질 무렵|한 주가 끝날 즈음|아무에게도 알리지 않고",
        "등대지기가|은퇴한 우체부가|빵집 조카딸이|나이 든 지도 제작자가|야간 경비원이|떠돌이 시계공이|"
        "나룻배 사공이|이웃집 막내가|성가대 반주자가|느긋한 양봉가가|박물관 관리인이|정원사 한 사람이|역장이|"
        "식물학자가|초등학교 선생님이|항만 사무원이",
        "예배당 뒤에서|낡은 방앗간 옆에서|부두에서|과수원에서|돌다리 아래에서|시장에서|수로 옆에서|다락방에서|"
        "석회 가마 곁에서|북쪽 방파제에서|네거리에서|열람실에서|둑길에서|빵집 앞에서|숲 가장자리에서|안마당에서",
        "작은 배를|구리 주전자를|털 담요 세 장을|이름 없는 편지를|정원 문을|배 한 상자를|놋쇠 등잔 두 개를|"
        "부서진 해시계를|양초 한 갑을|강의 지도책을|풍향계를|노 한 쌍을|마을 장부를|말린 약초를|오래된 바이올린을|"
        "여벌 열쇠를",
        "고쳤다|칠했다|팔았다|찾아냈다|닦았다|빌렸다|그렸다|재어 보았다|포장했다|나누어 주었다|숨겼다|손질했다|"
        "들여다보았다|잃어버렸다|옮겼다|살펴보았다",
    ),
}
NOTE = {EN: "Note {}: ", KO: "메모 {}: "}
INTRO = {
    EN: "Read the following notes. There is a task after the last one.",
    KO: "다음 메모를 읽으세요. 마지막 메모 다음에 과제가 있습니다.",
}
NAMES = {
    EN: ("boathouse", "granary", "observatory", "ice cellar", "print shop", "bell tower", "greenhouse", "archive"),
    KO: ("보트 창고", "곡물 창고", "천문대", "얼음 창고", "인쇄소", "종탑", "온실", "문서고"),
}
CODE = {EN: "The door code of the {} is {}.", KO: "{}의 출입 번호는 {}번이다."}
ASK_CODES = {
    EN: "Task: What are the door codes of the {} and of the {}? Answer with the two numbers only.",
    KO: "과제: {}의 출입 번호와 {}의 출입 번호는 각각 무엇입니까? 두 숫자만 쓰세요.",
}
VALUE = {EN: "The value of variable {} is {}.", KO: "변수 {}의 값은 {}이다."}
SAME = {EN: "Variable {} has the same value as variable {}.", KO: "변수 {}의 값은 변수 {}의 값과 같다."}
ASK_VALUE = {
    EN: "Task: What is the value of variable {}? Answer with the number only.",
    KO: "과제: 변수 {}의 값은 얼마입니까? 숫자만 쓰세요.",
}
BELL = {EN: "The harbour bell rang once.", KO: "항구의 종이 한 번 울렸다."}
ASK_COUNT = {
    EN: 'Task: How many times do the notes say "{}"? Answer with the number only.',
    KO: '과제: 메모에 "{}"라는 문장이 몇 번 나옵니까? 숫자만 쓰세요.',
}
ASK_COPY = {
    EN: "Task: Copy the text of note {} exactly, without its number. Write nothing else.",
    KO: "과제: 메모 {}의 글을 번호 없이 그대로 옮겨 쓰세요. 다른 말은 쓰지 마세요.",
}
CHECKS = ("codes", "value", "copy", "count")


def documents(qualab: Mapping[str, Any], **_: object) -> dict[str, Any]:
    """Return lm-eval's data set of one length: what each item is made of, without its text."""
    rows = []
    for number in range(N_ITEMS):
        check, language = CHECKS[number % 4], LANGUAGES[number // 4 % 2]
        row = {"key": number, "language": language, "check": check, "tokens": qualab["prompt_tokens"]}
        rows.append(row | {"answer": _drawn(row)[3]})
    return {"test": datasets.Dataset.from_list(rows)}


def prompt(doc: Mapping[str, Any]) -> str:
    """Write an item's whole prompt."""
    rng, hidden, task, answer = _drawn(doc)
    language = doc["language"]
    room = int(doc["tokens"] * CHARACTERS_A_TOKEN[language]) - len(INTRO[language] + task + " ".join(hidden))
    notes: list[str] = []
    while room > 0:
        sentences = _sentences(rng, language, SENTENCES_A_NOTE)
        notes.append(" ".join(sentences))
        room -= len(notes[-1]) + len(NOTE[language]) + 3
    places = sorted(rng.sample(range(len(notes)), len(hidden)))  # a chain of variables stays in its order
    for place, sentence in zip(places, hidden, strict=True):
        notes[place] += f" {sentence}"
    if doc["check"] == "copy":
        place = rng.randrange(len(notes))
        notes[place], task = answer, task.format(place + 1)
    numbered = (NOTE[language].format(number) + note for number, note in enumerate(notes, start=1))
    return "\n".join([INTRO[language], "", *numbered, "", task])


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Score one answer 1 or 0. Reasoning before it does not count, nor do words around numbers."""
    answer, expected = results[0].rpartition("</think>")[2], doc["answer"]
    if doc["check"] == "copy":
        return {"right": float(answer.split() == expected.split())}
    numbers = re.findall(r"\d+", answer)
    if doc["check"] == "count":
        return {"right": float(numbers[-1:] == [expected])}
    return {"right": float({number for number in numbers if len(number) >= CODE_DIGITS} == set(expected.split()))}


def _drawn(doc: Mapping[str, Any]) -> tuple[random.Random, list[str], str, str]:
    """Draw what an item hides among its notes, its task and its answer; the notes come next from the generator."""
    rng, language = random.Random(f"{SEED} {doc['tokens']} {doc['key']}"), doc["language"]
    first, second, *others = (str(code) for code in rng.sample(range(10 ** (CODE_DIGITS - 1), 10**CODE_DIGITS), 4))
    if doc["check"] == "codes":
        names = rng.sample(NAMES[language], 4)
        hidden = [CODE[language].format(*pair) for pair in zip(names, (first, second, *others), strict=True)]
        rng.shuffle(hidden)
        return rng, hidden, ASK_CODES[language].format(*names[:2]), f"{first} {second}"
    if doc["check"] == "value":
        names = ["".join(letters) for letters in rng.sample([(a, b) for a in "BDFGKM" for b in "PQRSTV"], 6)]
        chains = [[VALUE[language].format(names[own], code)] for own, code in ((0, first), (1, second))]
        for own in range(2, 6):
            chains[own % 2].append(SAME[language].format(names[own], names[own - 2]))
        hidden = [sentence for pair in zip(*chains, strict=True) for sentence in pair]
        return rng, hidden, ASK_VALUE[language].format(names[4]), first
    if doc["check"] == "copy":
        return rng, [], ASK_COPY[language], " ".join(_sentences(rng, language, SENTENCES_A_NOTE))
    count = rng.randint(3, 9)
    return rng, [BELL[language]] * count, ASK_COUNT[language].format(BELL[language]), str(count)


def _sentences(rng: random.Random, language: str, n: int) -> list[str]:
    columns = (rng.choices(words.split("|"), k=n) for words in FILLER[language])
    return [" ".join(words) + "." for words in zip(*columns, strict=True)]
