"""The pages' words in English and Korean; verdicts and units are said as the report says them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from qualab.model.names import Language
from qualab.report.words import Words

TEXTS: Mapping[str, tuple[str, str]] = {
    # every page
    "skip": ("Skip to content", "본문으로 건너뛰기"),
    "comparisons": ("Comparisons", "비교 목록"),
    "plan calculator": ("Plan calculator", "계획 계산기"),
    "sign in": ("Sign in", "로그인"),
    "sign out": ("Sign out", "로그아웃"),
    "main navigation": ("Pages", "페이지"),
    "language": ("Language", "언어"),
    "not said": ("not said", "표시 없음"),
    "all": ("all", "전체"),
    "baseline": ("Baseline", "기준"),
    "candidate": ("Candidate", "후보"),
    # what went wrong
    "error title": ("This page cannot be shown", "이 페이지를 보여 드릴 수 없습니다"),
    "error status": ("HTTP status {status}", "HTTP 상태 {status}"),
    "back to comparisons": ("Back to all comparisons", "비교 목록으로 돌아가기"),
    # signing in
    "token": ("Token", "토큰"),
    "token hint": (
        "One that “qualab token create NAME --scope read” has printed. It is kept in a cookie that no script reads.",
        "“qualab token create NAME --scope read”가 출력한 토큰을 넣습니다. 스크립트가 읽을 수 없는 쿠키에 보관합니다.",
    ),
    "token wrong": (
        "The token is not valid: it is wrong, expired or revoked.",
        "토큰이 올바르지 않거나, 만료되었거나, 취소되었습니다.",
    ),
    # the list
    "filter": ("Filter", "필터 적용"),
    "clear filter": ("Clear", "초기화"),
    "status": ("Status", "상태"),
    "verdict": ("Verdict", "판정"),
    "label": ("Label", "라벨"),
    "model": ("Model", "모델"),
    "suite": ("Suite", "과제 묶음"),
    "items": ("Items", "문항"),
    "created": ("Created (UTC)", "생성 시각 (UTC)"),
    "comparison": ("Comparison", "비교"),
    "signed": ("signed off", "승인됨"),
    "nothing found": ("No comparison fits the filter.", "조건에 맞는 비교가 없습니다."),
    "nothing there": (
        "There is no comparison yet. “qualab run” or POST /v1/comparisons makes one.",
        "아직 비교가 없습니다. “qualab run”이나 POST /v1/comparisons로 만들 수 있습니다.",
    ),
    "next page": ("Next page", "다음 페이지"),
    "first page": ("First page", "첫 페이지"),
    "answers so far": ("{baseline} + {candidate} answers", "답변 {baseline} + {candidate}건"),
    "answers of": (
        "baseline {baseline}, candidate {candidate}, of {total} each",
        "각 {total}건 중 기준 {baseline}건, 후보 {candidate}건",
    ),
    "items asked": ("{n} of {total}", "{total}개 중 {n}개"),
    "without answer": ("{n} without an answer", "답변 없음 {n}건"),
    "seconds left": ("about {n} s left", "약 {n}초 남음"),
    "minutes left": ("about {n} min left", "약 {n}분 남음"),
    "hours left": ("about {n} h left", "약 {n}시간 남음"),
    "status queued": ("queued", "대기 중"),
    "status running": ("running", "실행 중"),
    "status failed": ("failed", "실패"),
    "status cancelled": ("cancelled", "취소됨"),
    "status planned": ("being prepared", "준비 중"),
    "status interrupted": ("interrupted", "중단됨"),
    "status stopped": ("stopped", "멈춤"),
    "status answered": ("being analysed", "분석 중"),
    "status finished": ("finished", "완료"),
    # one comparison
    "contents": ("Contents", "목차"),
    "live title": ("Progress", "진행 상황"),
    "live arm": ("{n} of {total}", "{total}건 중 {n}건"),
    "live rate": ("{rate} answers a second", "초당 답변 {rate}건"),
    "no analysis": ("There is no verdict yet.", "아직 판정이 없습니다."),
    "download": ("Report", "보고서"),
    "browse items": ("Browse items", "문항 보기"),
    "browse flips": ("Browse flips", "뒤집힌 문항 보기"),
    "browse losses": ("Losses", "새로 틀린 문항"),
    "signoffs": ("Sign-offs", "승인 기록"),
    "no signoffs": (
        "Nobody has signed this off. “qualab sign-off {id} --as NAME” does.",
        "아직 승인한 사람이 없습니다. “qualab sign-off {id} --as NAME”로 승인합니다.",
    ),
    "signed by": ("Signed by", "승인자"),
    "signed at": ("When", "승인 시각"),
    "note": ("Note", "메모"),
    "override": ("In spite of", "예외 사유"),
    # items
    "items of": ("Items of {name}", "{name}의 문항"),
    "show": ("Show", "보기"),
    "show all": ("all", "전체"),
    "show flipped": ("flipped", "뒤집힘"),
    "show gains": ("gains", "새로 맞힘"),
    "show losses": ("losses", "새로 틀림"),
    "show missing": ("missing", "누락"),
    "show different": ("different text", "텍스트가 다름"),
    "task": ("Task", "과제"),
    "longest answer": ("Characters of the longer answer", "더 긴 답의 문자 수"),
    "at least": ("at least", "최소"),
    "at most": ("at most", "최대"),
    "position": ("Item", "문항"),
    "document": ("Document", "문서"),
    "repeat": ("Repeat", "반복"),
    "change": ("Change", "변화"),
    "text": ("Text", "텍스트"),
    "characters": ("Characters", "문자 수"),
    "same text": ("same", "같음"),
    "different text": ("different", "다름"),
    "change same": ("same score", "점수 같음"),
    "change gain": ("gain", "새로 맞힘"),
    "change loss": ("loss", "새로 틀림"),
    "change unknown": ("missing", "누락"),
    "no items": ("No item fits the filter.", "조건에 맞는 문항이 없습니다."),
    # one item
    "previous": ("Previous", "이전"),
    "next": ("Next", "다음"),
    "going through": ("Going through: {show}", "넘겨 보는 문항: {show}"),
    "prompt": ("Prompt", "프롬프트"),
    "target": ("Target", "정답"),
    "answers": ("Answers", "답변"),
    "choices": ("Choices", "선택지"),
    "choice": ("Choice", "선택지"),
    "log-likelihood": ("log-likelihood", "로그우도"),
    "chosen": ("most likely", "가장 높음"),
    "scores": ("Scores", "점수"),
    "metric": ("Metric", "지표"),
    "extracted": ("Extracted", "추출한 답"),
    "extracted answers": ("Extracted answers", "추출한 답"),
    "filter name": ("Filter", "필터"),
    "whole answer": ("(the whole answer)", "(답 전체)"),
    "extracted note": (
        "What the task's filters take out of each answer, made now from the stored texts: that is what was scored.",
        "과제의 필터가 두 답에서 뽑아낸 것입니다. 저장된 텍스트로 지금 다시 뽑았으며, 이것이 채점 대상입니다.",
    ),
    "extracted awaited": (
        "The task is being loaded; its filters then run over both stored answers.",
        "과제를 불러오는 중입니다. 다 불러오면 저장된 두 답에 필터를 적용합니다.",
    ),
    "extract now": ("Show them", "보기"),
    "differs": ("differs", "다름"),
    "extracted not had": (
        "The filters cannot be run here. The scores hold no extracted answer, unless the table below shows one.",
        "여기서는 필터를 실행할 수 없습니다. 아래 표에 보이는 것 말고는 점수에 추출한 답이 남아 있지 않습니다.",
    ),
    "decides": ("decides gain or loss", "새로 맞힘과 새로 틀림을 가르는 지표"),
    "as curl": ("Both requests as curl", "두 요청을 curl로"),
    "curl hint": (
        "The bytes that were sent. Set API_KEY first where the endpoint wants a key: none is kept here.",
        "실제로 보낸 바이트 그대로입니다. 엔드포인트에 키가 필요하면 API_KEY를 먼저 설정하세요. 키는 여기에 보관하지 않습니다.",
    ),
    "copy": ("Copy", "복사"),
    "copied": ("Copied", "복사됨"),
    "permanent link": ("Link to this item", "이 문항의 링크"),
    "same texts": ("Both texts are the same.", "두 텍스트가 같습니다."),
    "differ at once": ("The texts differ from the first character on.", "첫 문자부터 다릅니다."),
    "differ after one": ("The texts differ after the first character.", "첫 문자만 같고 그 뒤가 다릅니다."),
    "differ after": ("The texts differ after {n} characters.", "앞 {n}자가 같고 그 뒤가 다릅니다."),
    "one is missing": ("There is no text to compare in one arm.", "한쪽에 비교할 텍스트가 없습니다."),
    "ends here": ("end of text", "텍스트 끝"),
    "no answer": ("No answer", "답 없음"),
    "empty answer": ("(empty)", "(빈 답)"),
    "answer status": ("status", "상태"),
    "answer ok": ("complete", "정상"),
    "answer truncated": ("cut off at the limit", "길이 제한에서 잘림"),
    "answer no_final_answer": ("reasoning only, no answer", "최종 답 없음(추론만 있음)"),
    "answer bad_body": ("unreadable answer", "읽을 수 없는 응답"),
    "answer http_error": ("HTTP error", "HTTP 오류"),
    "answer timeout": ("timed out", "시간 초과"),
    "answer connection_error": ("connection failed", "연결 오류"),
    "answer rejected": ("rejected", "거부됨"),
    "finish reason": ("finish reason", "종료 사유"),
    "answered by": ("answered by", "답한 모델"),
    "tokens": ("tokens", "토큰"),
    "latency": ("latency", "지연 시간"),
    "attempts": ("attempts", "시도"),
    "reasoning": ("reasoning", "추론 과정"),
    "characters of": ("{n} characters", "{n}자"),
    "drafted": ("draft tokens", "드래프트 토큰"),
    "drafted of": ("{accepted} of {drafted} accepted", "{drafted}개 중 {accepted}개 수용"),
    "no scores": ("This item has no score.", "이 문항에는 점수가 없습니다."),
    "role system": ("system", "시스템"),
    "role user": ("user", "사용자"),
    "role assistant": ("assistant", "어시스턴트"),
    # plan calculator
    "plan how": (
        "What a number of items can prove if the drafter changes nothing but the share of items that flip by itself.",
        "드래프터가 품질을 바꾸지 않고 일부 문항만 우연히 뒤집힌다고 볼 때, 문항 수로 무엇을 입증할 수 있는지 계산합니다.",
    ),
    "number of items": ("Items", "문항 수"),
    "discordance": ("Discordance: items right in exactly one arm (%)", "불일치율: 한쪽만 맞힌 문항 (%)"),
    "margin": ("Margin (pp)", "허용 한계 (%p)"),
    "expected missing": ("Answers expected to be missing in each arm (%)", "서버마다 예상되는 답변 누락률 (%)"),
    "alpha": ("Level α of each one-sided test (%)", "단측 검정마다의 유의 수준 α (%)"),
    "power aimed at": ("Power aimed at (%)", "목표 검정력 (%)"),
    "objective": ("To be proven", "입증할 것"),
    "objective equivalence": ("equivalence, within ±margin", "동등성, ±허용 한계 안"),
    "objective non_inferiority": ("non-inferiority, no loss beyond the margin", "비열등성, 허용 한계를 넘는 손실 없음"),
    "compute": ("Compute", "계산"),
    "figures": ("What it can prove", "입증할 수 있는 것"),
    "power here": ("Power with {n} items", "문항 {n}개의 검정력"),
    "items needed": ("Items needed for this margin", "이 허용 한계에 필요한 문항"),
    "narrowest margin": ("Narrowest margin that {n} items prove", "문항 {n}개로 입증되는 가장 좁은 한계"),
    "smallest loss": ("Smallest loss that {n} items find", "문항 {n}개로 찾을 수 있는 가장 작은 손실"),
    "more than": ("more than {n}", "{n}개보다 많음"),
    "no margin": ("none", "없음"),
    "curve axis": ("items that both arms answer", "두 서버가 모두 답하는 문항 수"),
    "curve vertical": ("power (%)", "검정력 (%)"),
    "curve here": ("{n} items: {power}", "문항 {n}개: {power}"),
    "curve target": ("aim: {power}", "목표: {power}"),
    "curve alt": (
        "Power by number of items at a discordance of {discordance} and a margin of {margin}: {here} with {n} items; {aim}.",
        "불일치율 {discordance}, 허용 한계 {margin}에서 문항 수에 따른 검정력: 문항 {n}개에서 {here}, {aim}.",
    ),
    "curve reaches": ("{power} need {n} items", "{power}에는 문항 {n}개 필요"),
    "curve never": ("{power} are not reached", "{power}에 이르지 못함"),
    "on the command line": ("The same on the command line", "명령줄에서 같은 계산"),
}
"""English and Korean by key."""
ERRORS: Mapping[str, tuple[str, str]] = {
    "error": ("처리하지 못했습니다", ""),
    "insufficient-data": ("데이터가 부족합니다", ""),
    "usage": ("요청을 처리할 수 없습니다", ""),
    "invalid-value": ("허용되지 않는 값입니다", "{fields}"),
    "unknown-task": ("알 수 없는 과제입니다", ""),
    "broken-task": ("과제에 오류가 있습니다", ""),
    "dataset-unavailable": ("데이터셋이 없습니다", ""),
    "bad-data-file": ("데이터 파일이 올바르지 않습니다", ""),
    "empty-dataset": ("데이터셋이 비어 있습니다", ""),
    "scoring-unavailable": ("채점에 필요한 것이 없습니다", ""),
    "endpoint-misconfigured": ("엔드포인트가 요청한 것을 제공하지 않습니다", ""),
    "comparison-not-found": ("비교를 찾을 수 없습니다", "ID가 {comparison_id}인 비교가 없습니다."),
    "item-not-found": ("문항을 찾을 수 없습니다", "이 비교에는 {position}번 문항이 없습니다. 번호는 0부터 시작합니다."),
    "not-yet": ("아직 준비되지 않았습니다", "비교가 더 진행되면 볼 수 있습니다."),
    "forbidden": ("이 토큰에는 권한이 없습니다", "read 권한이 있는 토큰으로 로그인하세요."),
    "too-many-requests": ("요청이 너무 많습니다", "{retry_after_s}초 뒤에 다시 시도하세요."),
    "endpoint-forbidden": ("서비스가 호출할 수 없는 엔드포인트입니다", ""),
    "secret-forbidden": ("허용되지 않는 키 참조입니다", ""),
    "path-forbidden": (
        "허용되지 않는 경로입니다",
        "실행한 사람의 폴더에 있는 과제입니다. 페이지에서는 그 코드를 불러오지 않습니다.",
    ),
    "comparison-busy": ("다른 프로세스가 실행 중인 비교입니다", ""),
    "plan-changed": ("과제, 데이터 또는 설정이 계획과 다릅니다", ""),
    "pair-differs": ("두 서버를 비교할 수 없습니다", ""),
    "infrastructure": ("qualab 외부에서 문제가 발생했습니다", ""),
    "endpoint-unreachable": ("엔드포인트에 연결할 수 없습니다", ""),
    "pin-unreadable": ("서버가 무엇을 실행하는지 확인할 수 없습니다", ""),
    "run-stopped": ("실행이 멈췄습니다", ""),
    "harness": ("lm-eval에서 오류가 났습니다", ""),
    "scoring-timed-out": ("답 하나를 채점하는 데 시간이 너무 오래 걸렸습니다", ""),
    "too-many-tasks": ("과제가 너무 많습니다", ""),
    "store": ("데이터베이스 오류입니다", "잠시 후 다시 시도하세요."),
    "store-unavailable": ("데이터베이스에 연결할 수 없습니다", "잠시 후 다시 시도하세요."),
    "store-full": ("데이터베이스가 가득 찼습니다", "서비스 운영자에게 알려 주세요."),
    "store-locked": ("데이터베이스가 잠겨 있습니다", "잠시 후 다시 시도하세요."),
    "store-read-only": ("데이터베이스가 읽기 전용입니다", "서비스 운영자에게 알려 주세요."),
    "schema-mismatch": ("데이터베이스 스키마가 다릅니다", "서비스 운영자에게 알려 주세요."),
    "workers-lost": ("작업 프로세스가 연달아 중단되었습니다", ""),
    "store-damaged": ("데이터베이스가 손상되었습니다", "서비스 운영자에게 알려 주세요."),
    "no-such-route": ("페이지를 찾을 수 없습니다", "주소를 확인하세요."),
    "request-too-large": ("보낸 내용이 너무 큽니다", "{max_body_bytes}바이트까지 받습니다."),
}
"""Korean by the codes of errors: a title, and what an error of a page says beyond that, where values say it all.

English has the error's own message.
"""
FIELDS: Mapping[str, str] = {
    "greater_than_equal": "{ge:.10g} 이상이어야 합니다",
    "less_than_equal": "{le:.10g} 이하여야 합니다",
    "less_than": "{lt:.10g}보다 작아야 합니다",
    "float_parsing": "숫자여야 합니다",
    "int_parsing": "정수여야 합니다",
    "int_from_float": "정수여야 합니다",
    "enum": "다음 중 하나여야 합니다: {expected}",
    "literal_error": "다음 중 하나여야 합니다: {expected}",
    "string_too_long": "{max_length}자 이하여야 합니다",
}
"""Korean by pydantic's kinds of errors: what a field of a form must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An error, for a person."""

    title: str
    """Empty in English: the message says it."""
    message: str
    hint: str
    language: Language
    """The message's; a hint is English."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """Say things on pages in one language."""

    language: Language

    def __call__(self, key: str, **values: object) -> str:
        """Return a text with these values in their places."""
        return self.report.units(TEXTS[key][self.language is Language.KOREAN].format(**values))

    @property
    def report(self) -> Words:
        """Return what the report says in this language."""
        return Words(language=self.language)

    def notice(self, code: str, message: str, hint: str = "", *, values: Mapping[str, object] | None = None) -> Notice:
        """Word an error by its code; its own message and hint, which are English, where `values` do not say it all."""
        if self.language is Language.ENGLISH:
            return Notice(title="", message=message, hint=hint, language=Language.ENGLISH)
        title, detail = ERRORS.get(code, ERRORS["error"])
        if values is not None and detail:
            text = detail.format_map(defaultdict(str, values))
            return Notice(title=title, message=text, hint="", language=Language.KOREAN)
        return Notice(title=title, message=message, hint=hint, language=Language.ENGLISH)

    def field(self, kind: str, message: str, context: Mapping[str, object]) -> str:
        """Say what a field of a form must be, by pydantic's kind, message and context of the error."""
        if self.language is Language.ENGLISH or kind not in FIELDS:
            return message
        return FIELDS[kind].format_map(context)
