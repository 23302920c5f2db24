"""Write `items.jsonl`: 200 prompts of this project's own that provoke drafters, by a fixed seed.

Usage: python tasks/stress/make.py > tasks/stress/items.jsonl
"""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

SEED = "stress 1"
Row = dict[str, Any]
EN, KO = "en", "ko"


def filled(rng: random.Random, text: str) -> str:
    """Draw a digit from 1 to 9 for each #, one from 1 to 5 for each %, a capital letter for each @."""
    signs = {"#": "123456789", "%": "12345", "@": string.ascii_uppercase}
    return re.sub("[#%@]", lambda match: rng.choice(signs[match[0]]), text)


def compact(value: object) -> str:
    """Write JSON on one line, as a model is asked to."""
    return json.dumps(value, ensure_ascii=False)


# Verbatim copying

SENTENCES = {
    EN: """\
Valve @@-### was torqued to ##.# N·m at 1#:%#, and the quincunx of bolts around it was resealed.
Crate #,### held 9## vials of ambergris tincture, ## of them labelled @#-@#-##.
Dr. Quillfeather logged a borborygmus of 0.## Hz in tank @@#, then one of 0.## Hz in tank @@#.
The palimpsest in case @## carries ### glosses; gloss ## was scraped off in 1###.
Ferry @@@-## left berth # at 0#:%#, berth # at 0#:%#, and berth # at 1#:%#.
Of 9## sampled limpets, 3## had a chirality of @#, and ## a chirality of @#.
Invoice INV-####-@@ lists ## skeins of heliotrope yarn at 4.## each and ## skeins of vermilion yarn at 4.## each.
During the syzygy of 19##, buoy @#@# drifted ##.## km east and ##.## km north.
Bar ## of the xylophone rings at ###.# Hz, bar ## at ###.# Hz, and the zugzwang motif needs both.
Passcode @#@#-@#@#-#### expires after ## tries; passcode @#@#-@#@#-#### never expires.""",
    KO: """\
@@-###번 밸브는 1#:%#에 ##.# N·m로 조였고, 둘레의 볼트 #개는 시나브로 풀려 있었다.
#,###번 상자에는 쪽물 들인 모시 ##필이, #,###번 상자에는 잇꽃물 들인 모시 ##필이 들어 있다.
너나들이 상회의 전표 @@-####번에는 놋주발 ##벌, 놋대접 ##벌, 놋수저 ##벌이 적혀 있다.
윤슬호는 0#:%#에 #번 부두를, 0#:%#에 #번 부두를, 1#:%#에 #번 부두를 떠났다.
@#@#-@#@#-####번 암호는 ##번 틀리면 잠기고, @#@#-@#@#-####번 암호는 잠기지 않는다.
필사본 @##호의 곁글 ###군데 가운데 ##군데에는 곰비임비 덧쓴 흔적이 있다.
높새바람이 분 #월 1#일, @#@#번 부표는 동쪽으로 ##.## km, 북쪽으로 ##.## km 떠밀렸다.
달구리에 잰 수온은 @-#번 수조가 ##.#도, @-#번 수조가 ##.#도, @-#번 수조가 ##.#도였다.
@-##번 도르래의 굴대는 지름 ##.# mm로, @-##번 도르래의 굴대는 지름 ##.# mm로 깎았다.
애면글면 모은 옹기 ##점은 고샅길 ##번지에, ##점은 고샅길 ##번지에 두었다.""",
}
COPY = {
    EN: "Copy the following text exactly, with every number and punctuation mark. Write nothing else.",
    KO: "다음 글을 숫자와 문장 부호까지 그대로 옮겨 쓰세요. 다른 말은 쓰지 마세요.",
}


def copy(rng: random.Random, language: str, _number: int) -> Row:
    """Ask for a verbatim copy of rare words and numbers."""
    n_sentences = 4 if language == EN else 2
    text = filled(rng, " ".join(rng.sample(SENTENCES[language].split("\n"), n_sentences)))
    return {"check": "copy", "prompt": f"{COPY[language]}\n\n{text}", "answer": text}


# JSON with repeated keys and values

PARTS = {
    EN: ("hex bolt M6", "hex bolt M8", "hex nut M6", "hex nut M8", "washer M6", "washer M8"),
    KO: ("육각 볼트 M6", "육각 볼트 M8", "육각 너트 M6", "육각 너트 M8", "와셔 M6", "와셔 M8"),
}
TARGETS = {
    EN: ("Harbour Gate", "Harbour Street", "Harbour Square"),
    KO: ("항구문", "항구길", "항구 광장"),
}


def stock(rng: random.Random, language: str) -> tuple[Row, str]:
    """Draw a line of a stock list, with its record."""
    sku, part, n, place = (
        filled(rng, "B-10##"),
        rng.choice(PARTS[language]),
        10 * rng.randint(4, 19),
        filled(rng, "A-%"),
    )
    is_counted = rng.random() < 0.7
    if language == EN:
        line = f"{sku}, {part}, {n} pieces, bin {place}, {'counted' if is_counted else 'not counted'}"
        return {"sku": sku, "name": part, "quantity": n, "bin": place, "counted": is_counted}, line
    line = f"{sku}, {part}, {n}개, {place} 칸, 실사 {'완료' if is_counted else '전'}"
    return {"코드": sku, "이름": part, "수량": n, "칸": place, "실사": is_counted}, line


def reading(rng: random.Random, language: str) -> tuple[Row, str]:
    """Draw a sensor's line, with its record."""
    sensor, room, celsius, humidity = (
        filled(rng, "T-1#"),
        filled(rng, "%"),
        rng.randint(31, 69) / 10,
        60 + rng.randint(0, 9),
    )
    is_alarm = rng.random() < 0.3
    if language == EN:
        line = (
            f"{sensor} in cold room {room}: {celsius} °C, humidity {humidity} %, {'alarm' if is_alarm else 'no alarm'}"
        )
        record = {"sensor": sensor, "room": f"cold room {room}", "celsius": celsius, "humidity": humidity}
        return {**record, "alarm": is_alarm}, line
    line = f"저온실 {room}의 {sensor}: {celsius}도, 습도 {humidity}%, 경보 {'있음' if is_alarm else '없음'}"
    return {"센서": sensor, "장소": f"저온실 {room}", "온도": celsius, "습도": humidity, "경보": is_alarm}, line


def departure(rng: random.Random, language: str) -> tuple[Row, str]:
    """Draw a timetable's line, with its record."""
    route, target, platform = rng.randint(2, 9), rng.choice(TARGETS[language]), rng.randint(1, 4)
    leaves, is_late = filled(rng, "08:%#"), rng.random() < 0.3
    if language == EN:
        line = f"Line {route} to {target}, platform {platform}, leaves {leaves}, {'late' if is_late else 'on time'}"
        return {"line": route, "to": target, "platform": platform, "leaves": leaves, "late": is_late}, line
    line = f"{route}호선 {target}행, {platform}번 승강장, {leaves} 출발, {'지연' if is_late else '정시'}"
    return {"노선": route, "행선지": target, "승강장": platform, "출발": leaves, "지연": is_late}, line


RECORDS: tuple[tuple[Callable[..., tuple[Row, str]], dict[str, str]], ...] = (
    (stock, {EN: "items", KO: "품목"}),
    (reading, {EN: "readings", KO: "측정"}),
    (departure, {EN: "departures", KO: "출발편"}),
)
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
TYPE_NAMES = {
    EN: {bool: "true or false", int: "integer", float: "number", str: "text"},
    KO: {bool: "true 또는 false", int: "정수", float: "숫자", str: "문자열"},
}
TO_JSON = {
    EN: 'Turn these {n} lines into one JSON object. Its only key is "{root}", an array of {n} objects, one for '
    "each line in the same order, with the keys {keys}. Write the JSON alone, on one line.",
    KO: '다음 {n}줄을 JSON 객체 하나로 바꾸세요. 객체의 키는 "{root}" 하나이고, 값은 각 줄을 순서대로 옮긴 '
    "객체 {n}개의 배열입니다. 각 객체의 키는 {keys}입니다. JSON만 한 줄로 쓰세요.",
}


def object_of(properties: Row) -> Row:
    """Write the schema of an object that has these keys and no others."""
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def as_json(rng: random.Random, language: str, number: int) -> Row:
    """Ask for JSON of records, with its schema."""
    make, roots = RECORDS[number % len(RECORDS)]
    n_records = 4 if language == EN else 3
    records, lines = zip(*(make(rng, language) for _ in range(n_records)), strict=True)
    root, names = roots[language], TYPE_NAMES[language]
    keys = ", ".join(f'"{key}" ({names[type(value)]})' for key, value in records[0].items())
    record = object_of({key: {"type": TYPES[type(value)]} for key, value in records[0].items()})
    array = {"type": "array", "items": record, "minItems": n_records, "maxItems": n_records}
    form = {"name": "records", "strict": True, "schema": object_of({root: array})}
    return {
        "check": "json",
        "prompt": "\n".join([TO_JSON[language].format(n=n_records, root=root, keys=keys), "", *lines]),
        "answer": compact({root: records}),
        "response_format": compact({"type": "json_schema", "json_schema": form}),
    }


# Small edits of given code

CODES = (
    (
        """\
def total_price(orders, rate):
    total = 0.0
    for order in orders:
        price = order.price * order.count
        if order.is_gift:
            price = price - order.gift_price
        total = total + price * (1 + rate)
    if total > 500:
        total = total - 500 * 0.05
    return round(total, 2)""",
        (("total", "subtotal"), ("price", "amount"), ("500", "800"), ("rate", "tax_rate")),
    ),
    (
        """\
function mergeRows(leftRows, rightRows) {
  const merged = [];
  let leftIndex = 0;
  let rightIndex = 0;
  while (leftIndex < leftRows.length && rightIndex < rightRows.length) {
    if (leftRows[leftIndex].key <= rightRows[rightIndex].key) {
      merged.push(leftRows[leftIndex++]);
    } else {
      merged.push(rightRows[rightIndex++]);
    }
  }
  return merged.concat(leftRows.slice(leftIndex), rightRows.slice(rightIndex));
}""",
        (("merged", "joined"), ("leftIndex", "leftPlace"), ("rightRows", "otherRows"), ("key", "sortKey")),
    ),
    (
        """\
SELECT s.station_id, s.station_name, AVG(r.level_mm) AS mean_level_mm, MAX(r.level_mm) AS top_level_mm
FROM stations AS s
JOIN readings AS r ON r.station_id = s.station_id
WHERE r.level_mm > 120 AND s.station_name LIKE 'North%'
GROUP BY s.station_id, s.station_name
HAVING MAX(r.level_mm) > 480
ORDER BY top_level_mm DESC, s.station_name
LIMIT 25;""",
        (("station_id", "site_id"), ("level_mm", "depth_mm"), ("480", "640"), ("top_level_mm", "peak_level_mm")),
    ),
    (
        """\
class Tank:
    def __init__(self, volume, level=0):
        self.volume = volume
        self.level = level

    def fill(self, litres):
        self.level = min(self.volume, self.level + litres)
        return self.level

    def drain(self, litres):
        self.level = max(0, self.level - litres)
        return self.level""",
        (("level", "height"), ("litres", "gallons"), ("volume", "capacity"), ("drain", "empty")),
    ),
    (
        """\
services:
  reader:
    image: registry.example/reader:1.4.2
    environment: {QUEUE: intake, WORKERS: "4", TIMEOUT: "30"}
    restart: unless-stopped
  writer:
    image: registry.example/writer:1.4.2
    environment: {QUEUE: outbox, WORKERS: "4", TIMEOUT: "30"}
    restart: unless-stopped
  cleaner:
    image: registry.example/cleaner:1.4.2
    environment: {QUEUE: intake, WORKERS: "1", TIMEOUT: "90"}
    restart: unless-stopped""",
        (("intake", "inbox"), ("1.4.2", "1.5.0"), ("TIMEOUT", "DEADLINE"), ("writer", "sender")),
    ),
    (
        """\
fn longest_run(values: &[i32]) -> usize {
    let mut best = 0;
    let mut run = 0;
    let mut last = None;
    for value in values {
        run = if last == Some(value) { run + 1 } else { 1 };
        best = best.max(run);
        last = Some(value);
    }
    best
}""",
        (("best", "longest"), ("run", "length"), ("last", "previous"), ("values", "samples")),
    ),
    (
        """\
def grade(score):
    if score >= 90:
        return "A"
    if score >= 80:
        return "B"
    if score >= 70:
        return "C"
    if score >= 60:
        return "D"
    return "F"

def grades(scores):
    return {name: grade(score) for name, score in scores.items()}""",
        (("grade", "mark"), ("score", "points"), ("70", "75"), ("scores", "results")),
    ),
    (
        """\
.card { margin: 8px; padding: 16px; border: 1px solid #ccd; color: #223; }
.card-title { margin: 8px; padding: 4px; border: 0; color: #114; }
.card-body { margin: 8px; padding: 16px; border: 0; color: #223; }
.card-foot { margin: 8px; padding: 4px; border: 1px solid #ccd; color: #114; }
.note { margin: 8px; padding: 16px; border: 1px solid #dcc; color: #322; }""",
        (("8px", "6px"), ("padding", "gap"), ("16px", "24px"), ("border", "outline")),
    ),
)
EDIT = {
    EN: "In the code below, replace `{old}` with `{new}` wherever it stands as a whole word, and change nothing "
    "else. Write the whole code without a code fence and without comments of your own.",
    KO: "아래 코드에서 단어 전체가 `{old}`인 곳에 모두 `{new}` 단어를 대신 넣고, 나머지는 한 글자도 고치지 마세요. "
    "코드 블록 표시나 설명 없이 코드 전체를 쓰세요.",
}


def edit(_rng: random.Random, language: str, number: int) -> Row:
    """Ask for code with one word replaced."""
    pairs = [(code, old, new) for turn in range(4) for code, edits in CODES for old, new in [edits[turn]]]
    code, old, new = pairs[2 * number + (language == KO)]
    changed = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, code)
    return {"check": "code", "prompt": f"{EDIT[language].format(old=old, new=new)}\n\n{code}", "answer": changed}


# Tool calls

GOODS = {EN: ("glass bottles", "glass jars", "tin cans"), KO: ("유리병", "유리그릇", "양철 캔")}
LAMPS = {EN: ("warm white", "cool white", "daylight"), KO: ("전구색", "주백색", "주광색")}


def dock(rng: random.Random, language: str, n: int) -> tuple[str, list[Row]]:
    """Draw a request for `n` trucks, with the calls' arguments."""
    first, place, goods, time = (
        rng.randint(101, 180),
        rng.randint(2, 9),
        rng.choice(GOODS[language]),
        filled(rng, "0#:%#"),
    )
    trucks, docks = [f"T-{first + i}" for i in range(n)], [place + i for i in range(n)]
    calls = [
        {"truck": truck, "dock": dock, "arrival": time, "cargo": goods, "hazardous": False}
        for truck, dock in zip(trucks, docks, strict=True)
    ]
    if language == EN:
        text = " and ".join(f"truck {truck} at dock {dock}" for truck, dock in zip(trucks, docks, strict=True))
        return f"Expect {text}, arrival {time}, cargo {goods}, not hazardous.", calls
    text = ", ".join(f"{truck} 트럭은 {dock}번 하역장" for truck, dock in zip(trucks, docks, strict=True))
    return f"{text}, 도착 {time}, 화물은 {goods}, 위험물 아님.", calls


def light(rng: random.Random, language: str, n: int) -> tuple[str, list[Row]]:
    """Draw a request for `n` lamps, with the calls' arguments."""
    room, percent, seconds, colour = (
        rng.randint(201, 280),
        5 * rng.randint(4, 19),
        5 * rng.randint(1, 9),
        rng.choice(LAMPS[language]),
    )
    rooms = [f"{room + i}" for i in range(n)]
    calls = [{"room": room, "brightness": percent, "colour": colour, "seconds": seconds} for room in rooms]
    if language == EN:
        text = f"room{'s' if n > 1 else ''} {' and '.join(rooms)}"
        return f"Set the light of {text} to {percent} %, {colour}, over {seconds} seconds.", calls
    return f"{'호와 '.join(rooms)}호 조명을 {seconds}초에 걸쳐 밝기 {percent}%의 {colour}으로 바꿔 줘.", calls


def booking(rng: random.Random, language: str, n: int) -> tuple[str, list[Row]]:
    """Draw a request for `n` days, with the calls' arguments."""
    room, day, hour, people = rng.randint(1, 9), rng.randint(10, 27), rng.randint(10, 16), rng.randint(3, 18)
    days, start, end = [f"2031-05-{day + i}" for i in range(n)], f"{hour}:00", f"{hour + 1}:30"
    name = f"room {room}" if language == EN else f"회의실 {room}"
    calls = [{"room": name, "date": day, "start": start, "end": end, "people": people} for day in days]
    if language == EN:
        return f"Book {name} on {' and '.join(days)} from {start} to {end} for {people} people.", calls
    return f"{', '.join(days)} {start}부터 {end}까지 {people}명이 쓸 {name}번을 예약해 줘.", calls


TOOLS: tuple[tuple[Callable[..., tuple[str, list[Row]]], str, str, str], ...] = (
    (dock, "assign_dock", "Assign a truck to a dock", "Release a truck from its dock"),
    (light, "set_light", "Set the light of a room", "Turn off the light of a room"),
    (booking, "book_room", "Book a meeting room", "Cancel a booking"),
)
CALL = {
    EN: (
        'An assistant calls tools. It writes its calls as a JSON list of objects with the keys "name" and "arguments".',
        "Write the JSON list of calls for the last request, one object for each call, on one line and nothing else.",
    ),
    KO: (
        '도구를 호출하는 비서의 대화입니다. 호출은 "name"과 "arguments" 키가 있는 객체의 JSON 배열로 씁니다.',
        "마지막 요청에 대한 호출 배열만 한 줄로 쓰세요. 호출 하나가 객체 하나이며, 다른 말은 쓰지 마세요.",
    ),
}
SPEAKERS = {EN: ("User", "Calls", "Result"), KO: ("사용자", "호출", "결과")}


def call_tools(rng: random.Random, language: str, number: int) -> Row:
    """Ask for the next two calls of a transcript, with the tools."""
    make, name, purpose, other_purpose = TOOLS[number % len(TOOLS)]
    user, calls, result = SPEAKERS[language]

    def written(arguments: list[Row]) -> str:
        return compact([{"name": name, "arguments": own} for own in arguments])

    (question, before), (last_question, last) = make(rng, language, 1), make(rng, language, 2)
    properties = {key: {"type": TYPES[type(value)]} for key, value in last[0].items()}
    first_key = next(iter(properties))
    tools = [
        {
            "type": "function",
            "function": {"name": own, "description": text, "strict": True, "parameters": object_of(parameters)},
        }
        for own, text, parameters in (
            (name, purpose, properties),
            (f"undo_{name}", other_purpose, {first_key: properties[first_key]}),
        )
    ]
    transcript = [f"{user}: {question}", f"{calls}: {written(before)}", f"{result}: ok", f"{user}: {last_question}"]
    opening, ending = CALL[language]
    return {
        "check": "json",
        "prompt": "\n".join([opening, "", *transcript, "", ending]),
        "answer": written(last),
        "tools": compact(tools),
        "tool_choice": compact("required"),
    }


# Tables

TABLES = {
    EN: (("depot", "city", "state", "load"), ("North", "South", "East", "West"), ("open", "shut"), " %"),
    KO: (("창고", "지역", "상태", "적재율"), ("북부", "남부", "동부", "서부"), ("운영", "휴업"), "%"),
}
TABLE_STEPS = {
    EN: (
        "Transpose this table: its columns become rows, and the first column becomes the header row.",
        "Write this table without the rows whose {column} is {value}.",
        "Write this table with its columns in the reverse order.",
    ),
    KO: (
        "다음 표의 행과 열을 바꾸세요. 첫 열이 머리글 행이 됩니다.",
        "다음 표에서 {column} 값이 {value}인 행을 빼고 나머지 표를 쓰세요.",
        "다음 표의 열 순서를 거꾸로 바꾸세요.",
    ),
}
TABLE_END = {
    EN: "Write the Markdown table alone.",
    KO: "마크다운 표만 쓰세요.",
}


def table_text(rows: list[list[str]]) -> str:
    """Write a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def table(rng: random.Random, language: str, number: int) -> Row:
    """Ask for a table transposed, filtered or with its columns reversed."""
    header, places, states, percent = TABLES[language]
    n_rows, step = 6 + number % 2, number % 3
    codes = sorted({filled(rng, "D-%#") for _ in range(40)})[:n_rows]
    body = [
        [code, rng.choice(places), states[i % 3 == 1], f"{rng.randint(11, 99)}{percent}"]
        for i, code in enumerate(codes)
    ]
    rows = [list(header), *body]
    changed = (
        [list(column) for column in zip(*rows, strict=True)],
        [row for row in rows if row[2] != states[1]],
        [row[::-1] for row in rows],
    )[step]
    ask = TABLE_STEPS[language][step].format(column=header[2], value=states[1])
    return {
        "check": "table",
        "prompt": f"{ask} {TABLE_END[language]}\n\n{table_text(rows)}",
        "answer": table_text(changed),
    }


# Lists of nearly identical names

NAMES = {
    EN: (
        ("Annelise", "Anneliese", "Annalise", "Annalisa", "Annelisa", "Analise", "Annalies", "Anneliss"),
        ("Harlow", "Harrow", "Harlowe", "Marlow", "Marlowe", "Barlow"),
    ),
    KO: (
        ("김", "강", "공", "곽"),
        ("민서", "민석", "민성", "민선", "민수", "민주", "민준", "민지", "민재", "민정"),
    ),
}
LIST_STEPS = {
    EN: (
        "Write the names below in the reverse order, one on each line.",
        "Write the names below in the same order, one on each line, each with its number before it, as in 1. Name.",
        "Write the names below in the same order, one on each line, but leave out {name}.",
        "Write each of the names below on a line of its own, with the family name first, as in Family, Given.",
    ),
    KO: (
        "아래 이름을 거꾸로 된 순서로 한 줄에 하나씩 쓰세요.",
        "아래 이름을 같은 순서로 한 줄에 하나씩 쓰되, 1. 이름처럼 앞에 번호를 붙이세요.",
        "아래 이름을 같은 순서로 한 줄에 하나씩 쓰되, {name}만 빼세요.",
        "아래 이름을 같은 순서로 한 줄에 하나씩 쓰되, 이름 뒤에 '님'을 붙이세요.",
    ),
}
ONLY = {EN: "Write nothing else.", KO: "다른 말은 쓰지 마세요."}


def listing(rng: random.Random, language: str, number: int) -> Row:
    """Ask for a list of like names in another form."""
    firsts, seconds = NAMES[language]
    join = " ".join if language == EN else "".join
    names = rng.sample([join(pair) for pair in ((a, b) for a in firsts for b in seconds)], 14)
    step, omitted = number % 4, rng.choice(names[3:-3])
    changed = (
        names[::-1],
        [f"{i}. {name}" for i, name in enumerate(names, start=1)],
        [name for name in names if name != omitted],
        [", ".join(name.split()[::-1]) if language == EN else f"{name}님" for name in names],
    )[step]
    ask = LIST_STEPS[language][step].format(name=omitted)
    return {
        "check": "lines",
        "prompt": f"{ask} {ONLY[language]}\n\n{', '.join(names)}",
        "answer": "\n".join(changed),
    }


# Long repeats

REPEATED = {
    EN: (
        ("The ferry leaves at nine and the gulls stay behind.", "nine", "ten"),
        ("Every green bottle on the wall is still full.", "green", "brown"),
        ("Press the left pedal, then the right pedal, then wait.", "wait", "stop"),
        ("All nine lamps of the second floor are lit.", "second", "third"),
    ),
    KO: (
        ("배는 아홉 시에 떠나고 갈매기는 남는다.", "아홉", "열"),
        ("선반에 놓인 초록 병은 아직 가득하다.", "초록", "갈색"),
        ("왼쪽 페달을 밟고 잠시 기다린다.", "왼쪽", "오른쪽"),
        ("이층의 등불 아홉 개가 모두 켜졌다.", "이층", "삼층"),
    ),
}
REPEAT_STEPS = {
    EN: (
        "Write the line below {n} times, one below the other, but in line {k} put {new} in place of {old}.",
        "Count from {start} to {end}, one number on each line, but write skip in place of {skipped}.",
        "Count down from {end} to {start} in steps of 2, one number on each line.",
        'Write {n} lines of the form "Shelf 1: {colour}", numbered from 1 to {n}. '
        "All are {colour} but shelf {k}, which is {other}.",
    ),
    KO: (
        "아래 문장을 한 줄에 하나씩 {n}번 쓰되, {k}번째 줄에서만 '{old}' 대신 '{new}'이라고 쓰세요.",
        "{start}부터 {end}까지 숫자를 한 줄에 하나씩 쓰되, {skipped} 대신 '통과'라고 쓰세요.",
        "{end}부터 {start}까지 2씩 줄이면서 숫자를 한 줄에 하나씩 쓰세요.",
        "'1번 선반: {colour}'처럼 1번부터 {n}번까지 한 줄에 하나씩 {n}줄을 쓰세요. "
        "{k}번 선반만 {other}이고 나머지는 모두 {colour}입니다.",
    ),
}
SHELF = {
    EN: ("Shelf {}: {}", ("blue", "red", "green", "brown")),
    KO: ("{}번 선반: {}", ("파랑", "빨강", "초록", "노랑")),
}


def repeat(rng: random.Random, language: str, number: int) -> Row:
    """Ask for a long repetition with one change."""
    step = number % 4
    line, old, new = REPEATED[language][number // 4]
    shelf, colours = SHELF[language]
    colour, other = colours[number // 4], colours[number // 4 - 1]
    n = rng.randint(*{EN: ((9, 13), (14, 18)), KO: ((6, 7), (10, 12))}[language][step == 3])
    k, start = rng.randint(4, n - 1), 2 * rng.randint(20, 60) + 1
    end = start + (34 if step == 1 else 60)
    skipped = rng.randint(start + 8, end - 8)
    lines = (
        [line.replace(old, new) if i == k else line for i in range(1, n + 1)],
        [("skip" if language == EN else "통과") if i == skipped else str(i) for i in range(start, end + 1)],
        [str(i) for i in range(end, start - 1, -2)],
        [shelf.format(i, other if i == k else colour) for i in range(1, n + 1)],
    )[step]
    values = {
        "n": n,
        "k": k,
        "old": old,
        "new": new,
        "start": start,
        "end": end,
        "skipped": skipped,
        "colour": colour,
        "other": other,
    }
    given = "" if step else f"\n\n{line}"
    ask = REPEAT_STEPS[language][step].format(**values)
    return {"check": "lines", "prompt": f"{ask} {ONLY[language]}{given}", "answer": "\n".join(lines)}


CATEGORIES: tuple[tuple[str, Callable[..., Row], int], ...] = (
    ("copy", copy, 15),
    ("json", as_json, 15),
    ("code", edit, 15),
    ("tools", call_tools, 15),
    ("table", table, 14),
    ("names", listing, 12),
    ("repeat", repeat, 14),
)
"""Name, maker, and items in each language."""


def items() -> Iterator[Row]:
    """Yield all items, the categories and languages in turn, so that a limited run sees each."""
    series = [
        [
            {
                "category": name,
                "language": language,
                **make(random.Random(f"{SEED} {name} {language} {i}"), language, i),
            }
            for i in range(n_items)
        ]
        for name, make, n_items in CATEGORIES
        for language in (EN, KO)
    ]
    rows = (row for turn in zip_longest(*series) for row in turn if row)
    empty = {"response_format": "", "tools": "", "tool_choice": ""}
    for key, row in enumerate(rows, start=1):
        yield {"key": key, **empty, **row}


def main() -> None:
    """Write all items to standard output."""
    for row in items():
        print(compact(row))


if __name__ == "__main__":
    main()
