"""What keeps a comparison from its end, in Korean.

Errors are stored as English sentences beside a stable code. The code is said in either language; a sentence whose form is
known here is said anew with the same parts, and any other stays as it is, marked as English. A test holds the forms against
the code that makes the sentences.
"""

from __future__ import annotations

import re
from functools import cache

FORMS = {
    # an arm while it is asked
    "The {arm} at {url} fails: {part}; the last error was: {part_2}": "{arm} 서버({url})에서 요청이 계속 실패합니다. {part}. 마지막 오류: {part_2}",
    "{n} of {n_2} requests got no answer, more than the plan allows": "요청 {n_2}건 중 {n}건이 답을 받지 못해 계획의 허용 범위를 넘었습니다",
    "the last {n} requests got no answer": "마지막 요청 {n}건이 연달아 답을 받지 못했습니다",
    "none of {n} requests got an answer": "요청 {n}건이 하나도 답을 받지 못했습니다",
    "Everything answered so far is stored. Go on with: {command}": "지금까지 받은 답은 저장되어 있습니다. 이어서 실행: {command}",
    "Everything answered so far is stored": "지금까지 받은 답은 저장되어 있습니다",
    "Go on with: {command}": "이어서 실행: {command}",
    # an endpoint before it is asked
    "{url} cannot be reached: {part}": "{url}에 연결할 수 없습니다: {part}",
    "{url} refuses access: {said}": "{url}에서 접근을 거부했습니다: {said}",
    "{url} does not exist: {said}": "{url}: 없는 주소입니다. {said}",
    "{url} redirects to {said}": "{url}: 다른 주소로 리디렉션합니다. {said}",
    "{url} fails: {said}": "{url}에서 오류가 났습니다: {said}",
    "{url} refuses: {said}": "{url}에서 요청을 거부했습니다: {said}",
    "{url} answers with {said}, not a list of models": "{url}의 응답이 모델 목록이 아닙니다: {said}",
    "{url} serves no model {said}": "{url}에는 없는 모델입니다: {said}",
    "{url} has been loading its model for {n} s": "{url}: {n}초째 모델을 불러오는 중입니다",
    "{url} does not tokenize": "{url}: 토큰화를 지원하지 않습니다",
    "{url} offers no /tokenize, and log-likelihood tasks need token ids": "{url}에 /tokenize가 없는데, 로그우도 과제에는 토큰 ID가 필요합니다",
    "{arm} did not answer a trial request of {task}: {part}": "{arm} 서버가 {task} 과제의 시험 요청에 답하지 않았습니다: {part}",
    "{arm} does not serve requests of {task}: {part}": "{arm} 서버는 {task} 과제의 요청을 처리하지 못합니다: {part}",
    "no whole answer came in the time allowed": "제한 시간 안에 답이 다 오지 않음",
    "the body ended early or cannot be decoded": "본문이 중간에 끊겼거나 해독할 수 없음",
    "the answer is not HTTP": "응답이 HTTP가 아님",
    "the connection was refused, nothing listens there": "연결이 거부됨. 그 포트에서 실행 중인 서버가 없음",
    "no connection was made in the time allowed": "제한 시간 안에 연결되지 않음",
    "the connection was reset": "연결이 끊김",
    "the server closed the connection without an answer": "서버가 답 없이 연결을 끊음",
    "its host name cannot be resolved": "호스트 이름을 찾을 수 없음",
    "the proxy cannot be reached": "프록시에 연결할 수 없음",
    "The service may not call {url}: {said} is not on its list": "서비스가 호출할 수 없는 주소입니다: {url}. 허용 목록에 없음: {said}",
    "The endpoint's host {host} has no address": "엔드포인트 호스트 {host}의 주소를 찾을 수 없습니다",
    # the pair
    "The pair cannot be compared: {parts}": "두 서버를 비교할 수 없습니다: {parts}",
    "{setting} is {value} in the baseline and {value_2} in the candidate": "{setting}: 기준은 {value}, 후보는 {value_2}",
    "the {arm}'s engine has another {setting} than when the comparison started: {value}, now {value_2}": "{arm} 엔진의 {setting} 값이 시작할 때와 다름: {value}, 지금은 {value_2}",
    "the {arm}'s engine told its configuration when the comparison started, and does not now": "{arm} 엔진이 시작할 때는 설정을 공개했으나 지금은 공개하지 않음",
    "the {arm}'s answers come from another engine than those stored: {value}, now {value_2}": "{arm}의 응답이 저장된 답과 다른 엔진에서 옴: {value}, 지금은 {value_2}",
    "the {arm}'s engine has no drafter any more": "{arm} 엔진에 이제 드래프터가 없음",
    "the {arm}'s engine has a drafter now": "{arm} 엔진에 이제 드래프터가 있음",
    "the baseline is configured with a drafter ({value})": "기준에 드래프터가 설정되어 있음 ({value})",
    "both URLs lead to one server: its instance_id is the same": "두 URL이 같은 서버로 이어짐 (instance_id가 같음)",
    "the two tokenizers give different tokens for the same text": "같은 텍스트를 두 토크나이저가 다르게 나눔",
    "the baseline drafted {n} tokens for a probe": "기준이 시험 생성에서 토큰 {n}개를 드래프트함",
    "the candidate did not answer a probe: {part}": "후보가 시험 생성에 답하지 않음: {part}",
    "the candidate's engine counts no drafts: it has no drafter": "후보 엔진에 드래프트 카운터가 없음: 드래프터가 없음",
    "the candidate drafted nothing for a probe": "후보가 시험 생성에서 아무것도 드래프트하지 않음",
    "the candidate is configured with a drafter ({value}), which its metrics do not show yet": "후보에 드래프터가 설정되어 있으나({value}) 아직 /metrics에 나타나지 않음",
    "whether the {arm} drafts is not observable: {part}": "{arm}의 드래프트 여부를 알 수 없음: {part}",
    "/metrics is closed, and answers do not tell": "/metrics가 공개되어 있지 않고 응답에도 나오지 않음",
    "/metrics is open but tells nothing of drafting, and answers do not tell": "/metrics는 공개되어 있지만 드래프트에 관한 내용이 없고 응답에도 나오지 않음",
    "the {arm} answers as {said}, and {said_2} was asked": "{said_2}에 요청했는데 {arm} 쪽 응답의 모델은 {said}임",
    "the {arm} alone rejects requests of {task}: {part}": "{arm} 서버만 {task} 과제의 요청을 거부함: {part}",
    "the {arm}'s engine does not take {said} of gen_kwargs": "{arm} 엔진이 gen_kwargs의 {said} 설정을 받지 않음",
    "the {arm}'s engine does not take {said}, which a task sets": "{arm} 엔진이 과제가 정한 {said} 설정을 받지 않음",
    "whether the {arm}'s engine takes {said} is not observable: it publishes no settings": "{arm} 엔진이 {said} 설정을 받는지 알 수 없음: 설정 목록을 공개하지 않음",
    "a prompt of {task} has {n} tokens in the baseline and {n_2} in the candidate": "{task} 과제의 프롬프트가 기준에서는 토큰 {n}개, 후보에서는 {n_2}개",
    # the plan
    "These items cannot prove the plan's margins": "이 문항 수로는 계획의 허용 한계를 입증할 수 없습니다",
    "The prompts or items of {tasks} are not those of the plan any more": "{tasks} 과제의 프롬프트나 문항이 계획과 달라졌습니다",
    "What would be run now is not the frozen plan: {said} differ": "지금 실행하면 고정한 계획과 달라집니다. 다른 것: {said}",
    # scoring
    "Scoring item {said} took more than {n} s in {part}": "문항 {said}: {part} 단계가 {n}초 안에 끝나지 않았습니다",
    "filter {said} of task {task}": "{task} 과제의 필터 {said}",
    "the metrics of task {task}, after filter {said}": "{task} 과제의 지표 계산(필터 {said} 다음)",
    "The answers are kept. Correct what backtracks or waits there; QUALAB_SCORING_TIMEOUT gives an item more seconds": "답은 저장되어 있습니다. 그 단계에서 백트래킹하거나 기다리는 부분을 고치세요. QUALAB_SCORING_TIMEOUT으로 문항당 제한 시간을 늘릴 수 있습니다",
    # what pages are asked for
    "There is no comparison {said}": "{said}: 비교를 찾을 수 없습니다",
    "Comparison {id} has no item {n}": "비교 {id}에는 {n}번 문항이 없습니다",
    "comparison {id} has no item at position {n}": "비교 {id}에는 {n}번 문항이 없습니다",
    "Comparison {id} is {status}: its plan is not drawn up yet": "비교 {id}: 아직 계획이 만들어지지 않았습니다",
    "Comparison {id} is {status}: its items are not scored yet": "비교 {id}: 아직 문항이 채점되지 않았습니다",
    "Comparison {id} was imported from logs: it cannot be {status}": "비교 {id}: 로그에서 가져온 것이라 그렇게 할 수 없습니다",
    "Its answers and scores are here: {command}": "답과 점수는 여기 있습니다: {command}",
    "The tasks came from a folder of whoever ran them: no page loads their code": "실행한 사람의 폴더에서 온 과제라서 페이지에서는 그 코드를 불러오지 않습니다",
    "Data set {said}, is not in {dir}: looked for {said_2}": "데이터셋 {said}: {dir}에 없습니다. 필요한 파일: {said_2}",
    "Put its JSONL file there, or give another directory with --data-dir or QUALAB_DATA_DIR": "그곳에 JSONL 파일을 넣거나 --data-dir 또는 QUALAB_DATA_DIR로 다른 폴더를 지정하세요",
    "qualab rescore scores the answers anew": "qualab rescore로 답을 다시 채점할 수 있습니다",
    "the cursor is none of this list": "이 목록의 커서가 아닙니다",
    # what to do
    "Start both arms from one image, one checkpoint and one configuration, but for the drafter": "드래프터 말고는 같은 이미지, 같은 체크포인트, 같은 설정으로 두 서버를 시작하세요",
    "Start the candidate with its drafter (vLLM: --speculative-config), or correct its URL": "후보를 드래프터와 함께 시작하거나(vLLM: --speculative-config) URL을 고치세요",
    "Start the baseline without a drafter, or correct its URL": "기준을 드래프터 없이 시작하거나 URL을 고치세요",
    "Give the URLs of two servers, one without and one with the drafter": "드래프터가 없는 서버와 있는 서버의 URL을 따로 지정하세요",
    "Start it as it was, or begin a new comparison": "처음과 같게 시작하거나 새로 비교하세요",
    "Open /metrics of both arms (llama.cpp: --metrics; SGLang: --enable-metrics), or let a verdict stand without it: --allow-unobserved": "두 서버의 /metrics를 열거나(llama.cpp: --metrics, SGLang: --enable-metrics), 없이 판정하려면 --allow-unobserved를 지정하세요",
    "Use a version of SGLang that counts sglang:spec_verify_calls_total, or let a verdict stand without it: --allow-unobserved": "sglang:spec_verify_calls_total을 세는 SGLang 버전을 쓰거나, 없이 판정하려면 --allow-unobserved를 지정하세요",
    "Start TensorRT-LLM with enable_iter_perf_stats: true, or let a verdict stand without it: --allow-unobserved": "TensorRT-LLM을 enable_iter_perf_stats: true로 시작하거나, 없이 판정하려면 --allow-unobserved를 지정하세요",
    "Let a verdict stand without it: --allow-unobserved": "없이 판정하려면 --allow-unobserved를 지정하세요",
    "Let both arms be answered by this model under one name, and by no router's fallback": "두 서버 모두 라우터의 대체 모델 없이 이 모델이 같은 이름으로 답하게 하세요",
    "Leave it out, or give it the engine's own name; --allow-extra sends it all the same": "설정을 빼거나 그 엔진이 쓰는 이름으로 바꾸세요. 그대로 보내려면 --allow-extra를 지정하세요",
    "Serve both arms with the same tokenizer, chat template and version": "두 서버의 토크나이저, 채팅 템플릿, 버전을 같게 하세요",
    "Give the URL of an OpenAI-compatible server, as {said}": "OpenAI 호환 서버의 URL을 지정하세요. 예: {said}",
    "Give a key with {said}": "키를 지정하세요: {said}",
    "Give that URL itself": "그 URL을 직접 지정하세요",
    "Use {url}, which answers": "응답하는 주소를 사용하세요: {url}",
    "It serves none: look into its log": "제공하는 모델이 없습니다. 로그를 확인하세요",
    "It serves {said}": "제공하는 모델: {said}",
    "Look into the server's log": "서버 로그를 확인하세요",
    "Wait until its /health answers 200, then run again": "/health가 200으로 응답할 때까지 기다렸다가 다시 실행하세요",
    "Check that the server is alive and not overloaded": "서버가 살아 있고 과부하가 아닌지 확인하세요",
    "Start the server, or correct host and port": "서버를 시작하거나 호스트와 포트를 고치세요",
    "Check the spelling of the host name, and this machine's DNS": "호스트 이름의 철자와 이 컴퓨터의 DNS를 확인하세요",
    "Check the URL": "URL을 확인하세요",
    "Check the port: another kind of server listens there": "포트를 확인하세요. 다른 종류의 서버가 사용하고 있습니다",
    "Its operator names what may be called: {command}": "호출할 수 있는 곳은 서비스 운영자가 정합니다: {command}",
    "Name the model's tokenizer with {command}": "모델의 토크나이저를 지정하세요: {command}",
    "The trial request went to the chat route; --no-apply_chat_template uses completions": "시험 요청을 채팅 경로로 보냈습니다. --no-apply_chat_template이면 completions를 씁니다",
    "The trial request went to the completions route": "시험 요청을 completions 경로로 보냈습니다",
    "Use the same task files, data and lm-eval version as when the comparison started, or start a new one": "시작할 때와 같은 과제 파일, 데이터, lm-eval 버전을 쓰거나 새로 비교하세요",
    "Ask more items, widen the margin, or send accept_underpowered: true": "문항을 늘리거나, 허용 한계를 넓히거나, accept_underpowered: true를 보내세요",
    "This is a bug: see the log": "qualab의 오류입니다. 로그를 확인하세요",
    "`qualab list` shows what there is": "`qualab list`로 목록을 볼 수 있습니다",
    "Positions count from 0": "번호는 0부터 셉니다",
    "Follow its events": "진행 상황을 따라가며 기다리세요",
    "give `next_cursor` of a page back as it came": "받은 `next_cursor`를 그대로 넘기세요",
}
FIELDS = {
    "{field}: Input should be greater than or equal to {n}": "{field}: {n} 이상이어야 합니다",
    "{field}: Input should be less than or equal to {n}": "{field}: {n} 이하여야 합니다",
    "{field}: Input should be a valid number{said}": "{field}: 숫자여야 합니다",
    "{field}: Input should be a valid integer{said}": "{field}: 정수여야 합니다",
    "{field}: Input should be {said}": "{field}: 다음 중 하나여야 합니다. {said}",
    "{field}: String should have at most {n} characters": "{field}: {n}자 이하여야 합니다",
}
"""What pydantic says of a form's fields."""
WORDS = {"baseline": "기준", "candidate": "후보"}
_SHAPES = {"n": r"[\d,.]+", "field": r"\w+", "url": r"\S+", "arm": "baseline|candidate", "task": r"\S+", "id": r"\S+"}


def in_korean(text: str) -> str | None:
    """What is said, or each sentence of it, in Korean; None where a form is not known."""
    return _said(text) or _all_of(text, ". ")


def _said(text: str) -> str | None:
    for pattern, korean in _patterns():
        if found := pattern.fullmatch(text):
            parts = {name: _part(name, part) for name, part in found.groupdict().items()}
            return korean.format(**parts)
    return None


def _part(name: str, text: str) -> str:
    """What stands in a place: a sentence anew where its form is known, as it is otherwise."""
    kind = name.partition("_")[0]
    if kind == "parts":
        return "; ".join(_said(one) or one for one in text.split("; "))
    return (_said(text) or text) if kind == "part" else WORDS.get(text, text)


def _all_of(text: str, between: str) -> str | None:
    each = [_said(one) for one in text.split(between)]
    return between.join(one for one in each if one) if len(each) > 1 and all(each) else None


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((_pattern(form), korean) for form, korean in {**FORMS, **FIELDS}.items())


def _pattern(form: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", form)
    groups = (
        f"(?P<{piece}>{_SHAPES.get(piece.partition('_')[0], '.+?')})" if odd % 2 else re.escape(piece)
        for odd, piece in enumerate(pieces)
    )
    return re.compile("".join(groups), re.DOTALL)
