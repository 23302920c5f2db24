"""What is said of imported comparisons, in Korean: forms as in `sentences.py`."""

from __future__ import annotations

FORMS = {
    "Imported from logs, which do not tell: that the drafter ran, and in the candidate alone; the arms' images and "
    "checkpoints; that both were sent the same bytes in one order, at one time, with the same retries and deadlines.": "로그에서 "
    "가져온 결과입니다. 드래프터가 후보에서만 동작했는지, 두 서버의 이미지와 체크포인트가 무엇인지, 같은 바이트를 같은 순서로 같은 "
    "시간에 같은 재시도와 제한 시간으로 보냈는지는 로그로 알 수 없습니다.",
    "Made of two runs of this store: whether they were asked at one time, of the same images and checkpoints, with the "
    "same retries, and with a drafter in the candidate alone, is not checked.": "이 저장소의 두 실행을 합친 결과입니다. 같은 시간에, 같은 "
    "이미지와 체크포인트로, 같은 재시도로 요청했는지, 드래프터가 후보에만 있었는지는 확인하지 않았습니다.",
    "Items that only one of the two runs asked are left out: they are not missing.": "한쪽 실행만 요청한 문항은 누락으로 세지 않고 비교에서 "
    "뺐습니다.",
    "The margin was chosen after the data: not for sign-off.": "허용 한계를 데이터를 얻은 뒤에 정했으므로 승인에 쓸 수 없습니다.",
    "The plan is that of the comparison that these logs were exported from, as they say.": "계획은 이 로그를 내보낸 비교의 것입니다 (로그에 "
    "적힌 대로).",
    "The plan is that of the comparison that these logs were exported from, but for what decides.": "계획은 이 로그를 내보낸 비교의 "
    "것이지만, 판정 기준은 다릅니다.",
    "{task}: {n} answers paired, {parts} (allowed: {name}).": "{task}: 답변 {n}개를 짝지음, {parts} (허용: {name}).",
    "{task}: {n} answers paired, {parts}.": "{task}: 답변 {n}개를 짝지음, {parts}.",
    "{n} only in the baseline": "기준에만 있는 것 {n}개",
    "{n} only in the candidate": "후보에만 있는 것 {n}개",
    "{n} with other prompts": "프롬프트가 다른 것 {n}개",
    "{n} with another right answer": "정답이 다른 것 {n}개",
    "{n} logged more than once": "두 번 이상 기록된 것 {n}개",
    "{n} lost in both logs": "두 로그 모두에서 빠진 것 {n}개",
    "Allowed: {part}": "허용함: {part}",
    # whether they are two runs
    "both logs are the same bytes: a copy of one run, or two runs that answered alike to the last letter.": "두 로그의 바이트가 완전히 "
    "같음: 한 실행을 복사했거나, 두 실행의 답이 글자 하나까지 같음.",
    "both runs have the same date ({time}): one may be a copy of the other.": "두 실행의 시각이 같음 ({time}): 한쪽이 다른 쪽의 복사본일 수 있음.",
    "both logs may be of one run": "두 로그가 한 실행의 것일 수 있음",
    # what two runs differ in
    "not compared, since the log of the {arm} and the {arm_2} does not tell: {parts}.": "{arm} 로그와 {arm_2} 로그에 없어 비교하지 못한 것: {parts}.",
    "not compared, since the log of the {arm} does not tell: {parts}.": "{arm} 로그에 없어 비교하지 못한 것: {parts}.",
    "the tool's version": "도구 버전",
    "task versions": "과제 버전",
    "few-shot examples": "퓨샷 예시",
    "filters and metrics": "필터와 지표",
    "the chat template": "채팅 템플릿",
    "the system instruction": "시스템 지시문",
    "the logs' format: {value} and {value_2}.": "로그 형식: {value} / {value_2}.",
    "{name}'s version: {value} and {value_2}.": "{name} 버전: {value} / {value_2}.",
    "the model's name: {value} and {value_2}.": "모델 이름: {value} / {value_2}.",
    "the seed: {value} and {value_2}.": "시드: {value} / {value_2}.",
    "the limit: {value} and {value_2}.": "문항 수 제한: {value} / {value_2}.",
    "the chat template: {value} and {value_2}.": "채팅 템플릿: {value} / {value_2}.",
    "the few-shot examples as turns: {value} and {value_2}.": "퓨샷 예시를 대화로 넣음: {value} / {value_2}.",
    "the system instruction: {value} and {value_2}.": "시스템 지시문: {value} / {value_2}.",
    "{task}: the task's version: {value} and {value_2}.": "{task}: 과제 버전: {value} / {value_2}.",
    "{task}: the data set: {value} and {value_2}.": "{task}: 데이터셋: {value} / {value_2}.",
    "{task}: the number of few-shot examples: {value} and {value_2}.": "{task}: 퓨샷 예시 수: {value} / {value_2}.",
    "{task}: the generation settings differ in {n} of {n_2} answers: {value} and {value_2}.": "{task}: 답변 {n_2}개 중 {n}개의 생성 설정이 다름: "
    "{value} / {value_2}.",
    "{task}: filters or metrics: {value} and {value_2}.": "{task}: 필터 또는 지표: {value} / {value_2}.",
    "only the {arm} has {name}: left out.": "{arm} 쪽에만 있어 제외함: {name}.",
    "the {arm}'s {name} ends in the middle of line {n}: that item is left out.": "{arm} 쪽 {name} 파일이 {n}번째 줄 중간에서 끝나 그 문항을 "
    "제외함.",
    "the {arm}'s folder has {n} other runs; this is {name}.": "{arm} 폴더에 다른 실행이 {n}개 더 있음. 사용한 것: {name}.",
    "the {arm}'s folder has {n} other run; this is {name}.": "{arm} 폴더에 다른 실행이 {n}개 더 있음. 사용한 것: {name}.",
    "{task}: the {arm}'s scores come from more answers an item than the one that is kept.": "{task}: {arm} 쪽 점수는 문항마다 저장된 답변 하나가 "
    "아니라 여러 답변에서 나옴.",
    "{task}: scores of {name} are no numbers: left out.": "{task}: {name} 점수가 숫자가 아니어서 제외함.",
    "the plans in the logs are not taken up: they are not of the two arms of one comparison, or were edited.": "로그에 든 계획을 쓰지 "
    "않음: 한 비교의 두 서버 것이 아니거나 수정됨.",
    "{metric}: the {arm}'s results say {value}, its rows give {value_2}.": "{metric}: {arm} 쪽 결과 파일의 값은 {value}, 문항별 점수로 계산한 "
    "값은 {value_2}.",
    # what was assumed
    "{metric}: its scores do not add up to the log's own value in any way known: not tested.": "{metric}: 점수를 알려진 어떤 방식으로 모아도 "
    "로그의 값이 되지 않아 검정하지 않음.",
    "{metric}: its tasks do not add up to the log's own value in any way known: not tested.": "{metric}: 과제 값을 알려진 어떤 방식으로 모아도 "
    "로그의 값이 되지 않아 검정하지 않음.",
    "{metric}: the mean of its tasks, whatever their size: not tested.": "{metric}: 과제 크기와 무관한 평균이므로 검정하지 않음.",
    "{metric}: taken for {part}, {part_2}.": "{metric}: {part}(으)로 봄. {part_2}.",
    "a mean of 0/1 scores": "0/1 점수의 평균",
    "a mean of scores": "점수의 평균",
    "a mean over all entries of lists": "목록의 모든 항목의 평균",
    "macro-F1 of pairs": "쌍의 macro-F1",
    "not tested": "검정하지 않음",
    "which gives the log's own values": "로그의 값과 일치함",
    "as its scores look": "점수의 형태로 추정함",
    # sign-off, and scoring again
    "imported from logs: what was run cannot be checked": "로그에서 가져옴: 무엇을 실행했는지 확인할 수 없음",
    "made of two runs: what was run cannot be checked": "두 실행을 합침: 무엇을 실행했는지 확인할 수 없음",
    "the margin was chosen after the data": "데이터를 얻은 뒤에 정한 허용 한계",
    "scored again after the data with other tasks ({part}): never signed off": "데이터를 얻은 뒤 다른 과제로 다시 채점함 ({part}): 승인 불가",
    "{task}: {parts}; {part}": "{task}: {parts}. {part}",
    "lm-eval {value}, now {value_2}; {part}": "lm-eval {value}에서 {value_2}(으)로. {part}",
    "lm-eval {value}, now {value_2}": "lm-eval {value}에서 {value_2}(으)로",
    "{task}: {parts}": "{task}: {parts}",
    "version {value}, now {value_2}": "버전 {value}에서 {value_2}(으)로",
    "another configuration": "설정이 다름",
    "other documents": "문항이 다름",
    "other sizes or settings": "크기나 조건이 다름",
}
