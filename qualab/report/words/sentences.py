"""What analyses say, in Korean.

Stored analyses hold English sentences, and their bytes must stay as they are. Each sentence is therefore known here by the
form that it was made in, `{name}` standing for what varies, and is said anew in Korean with the same parts. A part may be
a sentence itself. A test holds the forms against the code that makes the sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

from qualab.report.words import imports

FORMS = {
    # a metric
    "no item was answered by both arms": "두 서버가 모두 답한 문항이 없음",
    "the interval lies inside {bounds} and the exact test agrees": "신뢰구간이 {bounds} 안에 있고 정확 검정도 일치",
    "the interval lies above {bounds} and the exact test agrees": "신뢰구간이 {bounds} 위에 있고 정확 검정도 일치",
    "the interval lies inside {bounds} ({part})": "신뢰구간이 {bounds} 안에 있음 ({part})",
    "the interval lies above {bounds} ({part})": "신뢰구간이 {bounds} 위에 있음 ({part})",
    "the interval lies inside {bounds}": "신뢰구간이 {bounds} 안에 있음",
    "the interval lies above {bounds}": "신뢰구간이 {bounds} 위에 있음",
    "the interval lies below {bounds}": "신뢰구간이 {bounds} 아래에 있음",
    "proven over complete pairs, but not with this policy: {part}; {part_2}": "완전한 쌍으로는 입증되지만, 다음 처리 방식에서는 아님: "
    "{part}. {part_2}",
    "a loss of {bounds} ({pp} to {pp_2}) is real and inside the margin": "{bounds}의 저하({pp} ~ {pp_2})가 실제로 있으나 허용 한계 안",
    "a gain of {bounds} ({pp} to {pp_2}) is real and inside the margin": "{bounds}의 향상({pp} ~ {pp_2})이 실제로 있으나 허용 한계 안",
    "a gain of {bounds} ({pp} to {pp_2}) is real": "{bounds}의 향상({pp} ~ {pp_2})이 실제로 있음",
    "proven over complete pairs, but not with this policy: {part}": "완전한 쌍으로는 입증되지만, 다음 처리 방식에서는 아님: {part}",
    "the candidate is better (adjusted p {p})": "후보가 더 좋음 (보정 p {p})",
    "the candidate is better (adjusted p {p}), inside the margin: the plan is strict": "후보가 더 좋고 허용 한계 안이지만, 엄격한 계획 (보정 p {p})",
    "the candidate is better by more than {bounds} (adjusted p {p})": "후보가 {bounds} 넘게 더 좋음 (보정 p {p})",
    "the candidate is worse (adjusted p {p})": "후보가 더 나쁨 (보정 p {p})",
    "the candidate is worse (adjusted p {p}), inside the margin: the plan is strict": "후보가 더 나쁨. 허용 한계 안이지만 엄격한 계획이므로 품질 저하 (보정 p {p})",
    "the candidate is worse by more than {bounds} (adjusted p {p})": "후보가 {bounds} 넘게 더 나쁨 (보정 p {p})",
    "nothing is proven: {part}": "입증된 것이 없음: {part}",
    "{part}; {bounds} needs {wanted} {part_2} and no true difference": "{part}. {part_2} {bounds}를 입증하려면, 실제 차이가 없을 때 {wanted} 필요",
    "{part}; {bounds} needs {wanted} {part_2} and no true difference, {wanted_2} if the difference of {pp} pp is real": "{part}. {part_2} {bounds}를 "
    "입증하려면, 실제 차이가 없을 때 {wanted}, {pp} pp의 차이가 실제일 때 {wanted_2} 필요",
    "{part}; {bounds} needs {wanted} {part_2} and no true difference; more items will not prove it if the difference of {pp} pp is real": "{part}. "
    "{part_2} {bounds}를 입증하려면, 실제 차이가 없을 때 {wanted} 필요. {pp} pp의 차이가 실제라면 문항을 늘려도 입증할 수 없음",
    # of versions before 0.2, in stored analyses
    "{part}; {bounds} needs {wanted} {part_2}": "{part}. {part_2} {bounds}를 입증하려면 {wanted} 필요",
    "the candidate is worse (adjusted p {p}), within the margin": "후보가 더 나쁘지만 허용 한계 안 (보정 p {p})",
    # a metric's proven margin
    "this 1 item proves no margin": "문항 1개로는 어떤 한계도 입증되지 않음",
    "this 1 item proves no margin ({part})": "문항 1개로는 어떤 한계도 입증되지 않음 ({part})",
    "this 1 item proves {bounds}": "문항 1개로 {bounds}까지 입증",
    "this 1 item proves {bounds} ({part})": "문항 1개로 {bounds}까지 입증 ({part})",
    "these {n} items prove no margin": "문항 {n}개로는 어떤 한계도 입증되지 않음",
    "these {n} items prove {bounds}": "문항 {n}개로 {bounds}까지 입증",
    "these {n} scores in {n_2} clusters prove no margin": "군집 {n_2}개의 점수 {n}개로는 어떤 한계도 입증되지 않음",
    "these {n} scores in {n_2} clusters prove {bounds}": "군집 {n_2}개의 점수 {n}개로 {bounds}까지 입증",
    "these {n} items prove no margin ({part})": "문항 {n}개로는 어떤 한계도 입증되지 않음 ({part})",
    "these {n} items prove {bounds} ({part})": "문항 {n}개로 {bounds}까지 입증 ({part})",
    "these {n} scores in {n_2} clusters prove no margin ({part})": "군집 {n_2}개의 점수 {n}개로는 어떤 한계도 입증되지 않음 ({part})",
    "these {n} scores in {n_2} clusters prove {bounds} ({part})": "군집 {n_2}개의 점수 {n}개로 {bounds}까지 입증 ({part})",
    "about {n}": "약 {n}개",
    "about {n} ({n_2} to {n_3})": "약 {n}개({n_2} ~ {n_3}개)",
    "about {n} ({n_2} to more than {n_3})": "약 {n}개({n_2}개 ~ {n_3}개 초과)",
    "more than {n}": "{n}개 넘게",
    "items at this discordance": "지금의 불일치율 기준으로",
    "items at this spread": "지금의 산포 기준으로",
    "scores at this discordance and a design effect of {x}": "지금의 불일치율과 설계 효과 {x} 기준으로",
    "all scores stand in one cluster, which counts as one item": "모든 점수가 한 군집에 있어 문항 하나로 셈",
    "the differences have no spread, so that there is no bound yet": "차이에 산포가 없어 아직 한계를 구할 수 없음",
    "{n} changed answers, counted, not resampled": "바뀐 답 {n}개, 재표집 없이 개수로 계산",
    "{n} changed answer, counted, not resampled": "바뀐 답 {n}개, 재표집 없이 개수로 계산",
    "no changed answers, counted, not resampled": "바뀐 답 없음, 재표집 없이 개수로 계산",
    "{n} changed answers, no bound yet: an answer lies outside the labels that are right": "바뀐 답 {n}개, 정답 레이블에 없는 답이 "
    "있어 아직 한계를 구할 수 없음",
    "{n} changed answer, no bound yet: an answer lies outside the labels that are right": "바뀐 답 {n}개, 정답 레이블에 없는 답이 "
    "있어 아직 한계를 구할 수 없음",
    "no changed answers, no bound yet: an answer lies outside the labels that are right": "바뀐 답 없음, 정답 레이블에 없는 답이 "
    "있어 아직 한계를 구할 수 없음",
    "the candidate is worse: look {n} of {n_2} crossed the boundary of harm (adjusted p {p})": "후보가 더 나쁨: 중간 분석 {n_2}회 중 {n}회째에 "
    "저하 판정 경계를 넘음 (보정 p {p})",
    "the candidate is better: look {n} of {n_2} crossed the boundary (adjusted p {p})": "후보가 더 좋음: 중간 분석 {n_2}회 중 {n}회째에 "
    "경계를 넘음 (보정 p {p})",
    "proven at look {n} of {n_2}: the interval at its boundary lies inside {bounds}": "중간 분석 {n_2}회 중 {n}회째에 입증: 경계 수준의 신뢰구간이 "
    "{bounds} 안에 있음",
    "proven at look {n} of {n_2}: the interval at its boundary lies above {bounds}": "중간 분석 {n_2}회 중 {n}회째에 입증: 경계 수준의 신뢰구간이 "
    "{bounds} 위에 있음",
    "the group's members do not have this metric": "그룹의 구성 과제에 이 지표가 없음",
    "no test: the task does not declare how this metric comes from its items": "검정 없음: 과제가 이 지표를 문항에서 어떻게 구하는지 밝히지 않음",
    "no test: the group mixes metrics of different kinds": "검정 없음: 그룹에 종류가 다른 지표가 섞여 있음",
    "no test: a score is no number, although the metric is declared a mean of numbers": "검정 없음: 숫자의 평균이라는 지표에 숫자가 아닌 점수가 있음",
    "no test: a score is no list, although the metric is declared a mean of lists": "검정 없음: 목록의 평균이라는 지표에 목록이 아닌 점수가 있음",
    "no test: a score of {value} lies outside {value_2} to {value_3}, the bounds of this metric's scores (score_bounds)": "검정 없음: 이 지표의 범위를 벗어난 점수가 있음: 점수 {value}, 범위 {value_2} ~ {value_3} (score_bounds)",
    "no test: the arms' lists differ in length": "검정 없음: 두 서버의 목록 길이가 다름",
    "no test: a score is no pair of labels, although the metric is declared macro-F1": "검정 없음: macro-F1이라는 지표에 레이블 쌍이 아닌 점수가 있음",
    "both arms are at 0, as a broken scorer or filter would have them": "두 서버 모두 0으로, 채점기나 필터가 고장 났을 때 나올 만한 값",
    "both arms are at 1, as a broken scorer or filter would have them": "두 서버 모두 1로, 채점기나 필터가 고장 났을 때 나올 만한 값",
    "both arms are below chance ({share}), as a broken scorer or filter would have them": "두 서버 모두 무작위 정답률({share})보다 낮아, 채점기나 "
    "필터가 고장 났을 때 나올 만한 값",
    # the comparison
    "no primary metric": "주 지표가 없음",
    "the primary metric is equivalent within {bounds}": "주 지표가 {bounds} 안에서 동등",
    "the primary metric is non-inferior: above {bounds}": "주 지표가 비열등: {bounds} 위",
    "all {n} primary metrics are equivalent within {bounds}": "주 지표 {n}개가 모두 {bounds} 안에서 동등",
    "all {n} primary metrics are non-inferior: above {bounds}": "주 지표 {n}개가 모두 비열등: {bounds} 위",
    "over all {n} metrics together the candidate is worse by {bounds} on average (global test, p {p})": "지표 {n}개 전체로 보면 후보가 평균 "
    "{bounds} 나쁨 (전역 검정, p {p})",
    "{n} answers of the candidate and {n_2} of the baseline {part} (p {p}): `qualab show --leaks` lists them": "후보 답변 {n}개, 기준 답변 "
    "{n_2}개: {part} (p {p}). 목록은 `qualab show --leaks`",
    "go on past a stop string": "종료 문자열 뒤로도 텍스트가 이어짐",
    "hold special tokens": "특수 토큰이 그대로 들어 있음",
    "hold broken characters (U+FFFD)": "깨진 문자(U+FFFD)가 들어 있음",
    "end by themselves before the other arm's text does": "길이 제한이 아닌데도 상대편 텍스트보다 먼저 끝남",
    "were cut at the length limit": "길이 제한에서 잘림",
    "{n} requests were not the same bytes in both arms": "요청 {n}건의 바이트가 두 서버에서 다름",
    "{n} items have the same answer and another score: the scoring differs, not the drafter (see qualab rescore)": "답이 같은데 점수가 다른 "
    "문항 {n}개: 드래프터가 아니라 채점이 다름 (qualab rescore 참고)",
    "1 item has the same answer and another score: the scoring differs, not the drafter (see qualab rescore)": "답이 같은데 점수가 다른 "
    "문항 1개: 드래프터가 아니라 채점이 다름 (qualab rescore 참고)",
    "the {arm} answered nothing": "{arm} 쪽이 아무것도 답하지 않음",
    "the plan was made after the data (changed: {changes}): never signed off": "데이터를 얻은 뒤에 만든 계획 (바뀐 것: {changes}): 승인 불가",
    "{metric}: {n} of {n_2} pairs lack an answer, more than the plan allows ({share}); {part}": "{metric}: {n_2}쌍 중 {n}쌍에 답이 없어 "
    "계획의 허용치({share})를 넘음. {part}",
    "1 pair without an answer alone costs {bounds}": "답이 없는 1쌍만으로도 {bounds}의 여유를 잃음",
    "{n} pairs without an answer alone cost {bounds}": "답이 없는 {n}쌍만으로도 {bounds}의 여유를 잃음",
    "{part} (holds unless more than {n} of these {n_2} were lost)": "{part} (이 {n_2}쌍 중 오답이 된 것이 {n}쌍 이하라면 판정이 유지됨)",
    "{part}: `qualab resume {name} --retry-failed`": "{part}: `qualab resume {name} --retry-failed`",
    "{metric}: {n} of {n_2} items lack an answer in one arm or both, more than the plan allows ({share})": "{metric}: 문항 {n_2}개 중 "
    "{n}개에 한쪽 또는 양쪽의 답이 없어 계획의 허용치({share})를 넘음",
    "{metric}: {n} of {n_2} answers lack an answer in one arm or both, more than the plan allows ({share})": "{metric}: 답변 {n_2}개 중 "
    "{n}개가 한쪽 또는 양쪽에 없어 계획의 허용치({share})를 넘음",
    # notes
    "Only the primary metrics are adjusted for the looks: the others are shown as if the run had been planned to end here.": "중간 분석에 대한 "
    "보정은 주 지표에만 적용했습니다. 나머지는 처음부터 여기서 끝낼 계획이었던 것처럼 표시합니다.",
    "Limited to {n} items a task: not for sign-off.": "과제마다 문항 {n}개로 제한한 실행이므로 승인에 쓸 수 없습니다.",
    "Unpinned: {parts}: not for sign-off.": "고정되지 않음: {parts}. 승인에 쓸 수 없습니다.",
    "No noise floor was measured: how much two runs of the baseline differ is not known.": "노이즈 플로어를 측정하지 않아, 기준 서버를 두 번 "
    "실행했을 때 결과가 얼마나 달라지는지 알 수 없습니다.",
    "Log-likelihood metrics do not exercise a drafter.": "로그우도 지표에서는 드래프터가 쓰이지 않습니다.",
    "Whether the drafter ran, and that nothing else differs between the arms, was not checked.": "드래프터가 실제로 동작했는지, 두 서버에 "
    "다른 차이가 없는지는 확인하지 않았습니다.",
    "The {arm} left more unanswered: {n} answers are missing in the baseline alone, {n_2} in the candidate alone (p {p}).": "{arm} 쪽의 "
    "누락이 더 많습니다: 기준만 누락 {n}개, 후보만 누락 {n_2}개 (p {p}).",
    "{n} answers of the {arm} ended neither by themselves nor at the limit: {said}. They are scored as they came.": "{arm} 답변 {n}개가 "
    "스스로 끝나지도 한도에서 끝나지도 않았습니다: {said}. 받은 그대로 채점했습니다.",
    "{n} answers of the {arm} ended neither by themselves nor at the limit: {said}; more than the plan allows ({share})": "{arm} 답변 {n}개가 "
    "스스로 끝나지도 한도에서 끝나지도 않음: {said}. 계획의 허용치({share})를 넘음",
    "Reasoning stands in the text of {n} answers of the {arm} alone, where it is scored too: start both arms with the same reasoning parser "
    "(vLLM, SGLang: --reasoning-parser; llama.cpp: --reasoning-format).": "{arm} 쪽에서만 답변 {n}개의 본문에 추론 과정이 들어 있어 함께 "
    "채점됩니다. 두 서버를 같은 추론 파서로 시작하세요 (vLLM, SGLang: --reasoning-parser, llama.cpp: --reasoning-format).",
    "Reasoning came beside {n} answers of the {arm} alone: thinking, or the reasoning parser, is on in one arm alone.": "{arm} 쪽에서만 "
    "답변 {n}개에 추론 과정이 따로 왔습니다. 한쪽 서버에서만 추론이나 추론 파서가 켜져 있습니다.",
    "Thoughts were cut by the limit on tokens: {n} in the baseline, {n_2} in the candidate (p {p}); give more room (max_gen_toks), or "
    "thinking a budget.": "추론이 토큰 한도에서 잘렸습니다: 기준 {n}개, 후보 {n_2}개 (p {p}). max_gen_toks를 늘리거나 추론에 예산을 두세요.",
    "The arms think at different length: {n} characters on average in the baseline, {n_2} in the candidate (p {p}).": "두 서버의 추론 길이가 "
    "다릅니다: 기준 평균 {n}자, 후보 평균 {n_2}자 (p {p}).",
    "The arms differ in how often the status is {status}: {n} items in the baseline alone, {n_2} in the candidate alone (p {p}).": "두 서버의 "
    "‘{status}’ 빈도가 다릅니다: 기준만 문항 {n}개, 후보만 {n_2}개 (p {p}).",
    "Left out: {n} answers that both arms lack for the same reason.": "두 서버가 같은 이유로 답하지 못한 {n}건은 제외했습니다.",
    "The worst case takes {share} of the pairs without an answer as lost, as planned.": "계획대로, 최악의 경우에서 답이 없는 쌍의 {share}를 "
    "오답이 된 것으로 봅니다.",
    "The arms' missing shares differ: the worst case takes all pairs without an answer as lost in {n} of {n_2} metrics.": "두 서버의 누락률이 "
    "달라, 지표 {n_2}개 중 {n}개에서는 최악의 경우에 답이 없는 쌍을 모두 오답이 된 것으로 봅니다.",
    "the plan assumes no discordance, and power at the observed one says nothing new": "계획에 가정한 불일치율이 없음. 관측된 불일치율로 구한 "
    "검정력은 새로운 정보를 주지 않음",
    "for a primary metric no power could be planned": "검정력을 계획할 수 없는 주 지표가 있음",
    "no answer was given by both arms and the first of these runs: nothing can be compared": "두 서버와 첫 추가 실행이 모두 답한 요청이 없어 "
    "비교할 수 없음",
    # sign-off and pins
    "the verdict is {part}": "판정: {part}",
    "the plan was made after the data": "데이터를 얻은 뒤에 만든 계획",
    "limited to {n} items a task": "과제마다 문항 {n}개로 제한",
    "unpinned: {parts}": "고정되지 않음: {parts}",
    "no task exercises the drafter": "드래프터를 쓰는 과제가 없음",
    "nothing tells that the drafter ran": "드래프터가 동작했다는 근거가 없음",
    "the image {name} names no digest": "이미지 {name}에 다이제스트가 없음",
    "no image is named": "이미지가 지정되지 않음",
    "the checkpoint's revision {name} is a branch or a tag": "체크포인트 리비전 {name}: 브랜치 또는 태그",
    "no checkpoint revision is named": "체크포인트 리비전이 지정되지 않음",
    # the drafter
    "whether the drafter ran is not observable: neither open /metrics nor answers tell (a plan may allow that with allow_unobserved)": "드래프터가 "
    "동작했는지 확인할 수 없음: 공개된 /metrics도 응답도 알려 주지 않음 (계획에서 allow_unobserved로 허용할 수 있음)",
    "whether the baseline drafts is not observable: neither open /metrics nor its configuration nor answers tell (a plan may allow that with "
    "allow_unobserved)": "기준 서버가 드래프트를 하는지 확인할 수 없음: 공개된 /metrics, 설정, 응답 어디에서도 알 수 없음 (계획에서 "
    "allow_unobserved로 허용할 수 있음)",
    "whether the drafter ran is not observable: {part} (a plan may allow that with allow_unobserved)": "드래프터가 동작했는지 확인할 수 없음: {part} "
    "(계획에서 allow_unobserved로 허용할 수 있음)",
    "whether the baseline drafts is not observable: {part} (a plan may allow that with allow_unobserved)": "기준 서버가 드래프트를 하는지 확인할 수 "
    "없음: {part} (계획에서 allow_unobserved로 허용할 수 있음)",
    "/metrics is closed, and answers do not tell": "/metrics가 공개되어 있지 않고 응답에도 나오지 않음",
    "/metrics is open but tells nothing of drafting, and answers do not tell": "/metrics는 공개되어 있지만 드래프트에 관한 내용이 없고 응답에도 "
    "나오지 않음",
    "the baseline is configured with a drafter ({name})": "기준 서버에 드래프터가 설정되어 있음 ({name})",
    "The candidate's engine counts no rounds: rounds, draft tokens and accepted tokens are estimated from its mean acceptance lengths.": "후보 "
    "엔진이 라운드를 세지 않아 라운드, 드래프트 토큰, 수용 토큰을 평균 수용 길이로 추정했습니다.",
    "The candidate's engine tells its iterations once: those that another reader took, or that were too many to be kept, are missing "
    "here.": "후보 엔진의 반복 통계는 한 번만 읽을 수 있습니다. 다른 곳에서 먼저 읽었거나 보관 한도를 넘은 것은 여기에 빠져 있습니다.",
    "the candidate's engine counts no drafts in {name}: it has no drafter": "후보 엔진의 {name}에 드래프트 카운터가 없음: 드래프터가 없음",
    "{task}: the baseline drafted {n} tokens: a drafter is on there": "{task}: 기준 서버가 {n}토큰을 드래프트함: 드래프터가 켜져 있음",
    "the candidate drafted nothing in {n} answers: its drafter is dead, or off": "후보가 답변 {n}개에서 드래프트를 전혀 하지 않음: 드래프터가 "
    "죽었거나 꺼져 있음",
    "{task}: the candidate drafted nothing in {n} answers, while it did in other tasks: every task that generates has to show the drafter at "
    "work (one that looks up its tokens in the prompt may find nothing here: leave such a task out)": "{task}: 다른 과제와 달리 후보가 답변 "
    "{n}개에서 드래프트를 전혀 하지 않음. 생성 과제는 모두 드래프터가 동작해야 함 (프롬프트에서 토큰을 찾는 방식이라면 찾을 것이 없을 수 있으니 "
    "그런 과제는 제외)",
    "{task}: the candidate drafted nothing in {n} answers from {time} on, while it did in the task's others": "{task}: {time}부터 답변 {n}개에서 "
    "후보가 드래프트를 전혀 하지 않음. 같은 과제의 나머지에서는 함",
    "{task}: none of {n} draft tokens was accepted: the drafter does not fit the model": "{task}: 드래프트 토큰 {n}개 중 하나도 수용되지 않음: "
    "드래프터가 모델과 맞지 않음",
    "{task}: {share} of the draft tokens were accepted, less than the plan's floor of {share_2}": "{task}: 드래프트 토큰 수용률 {share}, 계획의 "
    "하한 {share_2}보다 낮음",
    "the candidate drafted nothing for prompts of {n} tokens or more ({n_2} answers)": "프롬프트가 {n}토큰 이상일 때 후보가 드래프트를 전혀 하지 "
    "않음 (답변 {n_2}개)",
    "Whether the drafter stops beyond a length of prompt is not observable: answers do not tell (vLLM: --per-request-spec-decode-metrics "
    "summary).": "프롬프트가 길어지면 드래프터가 멈추는지는 응답만으로 알 수 없습니다 (vLLM: --per-request-spec-decode-metrics summary).",
    "Whether the drafter stops beyond a length of prompt is not observable: answers do not tell.": "프롬프트가 길어지면 드래프터가 멈추는지는 "
    "응답만으로 알 수 없습니다.",
    "{task}: what was drafted is not observable any more: the run was interrupted.": "{task}: 실행이 중단되어 드래프트 내역을 더 이상 알 수 없습니다.",
    "{task}: what was drafted is not observable.": "{task}: 드래프트 내역을 알 수 없습니다.",
    "{task}: nothing was drafted; its answers are too short for a drafter to be exercised.": "{task}: 드래프트가 없습니다. 답이 너무 짧아 "
    "드래프터가 쓰이지 않습니다.",
    "{task}: {n} draft tokens are too few to judge how many are accepted.": "{task}: 드래프트 토큰이 {n}개뿐이라 수용률을 판단할 수 없습니다.",
    "{task}: {share} of the rounds accepted no draft token: each cost a draft and gained nothing, which shows in the tail of the "
    "latencies.": "{task}: 라운드의 {share}에서 드래프트 토큰이 하나도 수용되지 않았습니다. 드래프트 비용만 들고 얻은 것이 없어 지연 시간의 "
    "꼬리에 나타납니다.",
    "{task}: a round yields {x} tokens, no more than the {x_2} at which drafting begins to pay (by the plan's costs).": "{task}: 라운드당 "
    "{x}토큰으로, 계획의 비용으로 드래프트가 이득이 되기 시작하는 {x_2}토큰을 넘지 못합니다.",
    "{task}: a round yields {x} tokens, no more than the {x_2} at which drafting begins to pay (by this run's step times).": "{task}: 라운드당 "
    "{x}토큰으로, 이 실행의 단계 시간으로 본 손익분기 {x_2}토큰을 넘지 못합니다.",
    "{task}: a round yields {x} tokens, no more than the {x_2} at which drafting begins to pay.": "{task}: 라운드당 {x}토큰으로, 드래프트가 이득이 "
    "되기 시작하는 {x_2}토큰을 넘지 못합니다.",
    "the engines differ in {name}: {value} and {value_2}": "두 엔진의 {name} 설정이 다름: {value} / {value_2}",
    "the {arm}'s answers come from {n} different engines ({name})": "{arm} 쪽의 답이 서로 다른 엔진 {n}개에서 나옴 ({name})",
    "{n} of {n_2} answers of the {arm} come from {name}, and {name_2} was asked: another model answers": "{arm} 쪽의 답 {n_2}개 중 {n}개는 "
    "요청한 {name_2}이(가) 아닌 {name}에서 나옴: 다른 모델이 답함",
    "{name} tells a part of its configuration: what it does not tell was not compared.": "{name}은(는) 설정을 일부만 알려 주므로 나머지는 비교하지 "
    "못했습니다.",
    "No task of this comparison generates: no drafter was exercised.": "생성 과제가 없어 드래프터가 쓰이지 않았습니다.",
    "The engine's configuration is not open in the {arm} and the {arm_2} (vLLM: VLLM_SERVER_DEV_MODE=1): names, versions and models "
    "alone were compared.": "{arm}과 {arm_2} 엔진의 설정이 공개되어 있지 않아(vLLM: VLLM_SERVER_DEV_MODE=1) 이름, 버전, 모델만 비교했습니다.",
    "The engine's configuration is not open in the {arm} (vLLM: VLLM_SERVER_DEV_MODE=1): names, versions and models alone were "
    "compared.": "{arm} 엔진의 설정이 공개되어 있지 않아(vLLM: VLLM_SERVER_DEV_MODE=1) 이름, 버전, 모델만 비교했습니다.",
    "The engine's configuration is not open in the {arm} and the {arm_2}: names, versions and models alone were compared.": "{arm}과 "
    "{arm_2} 엔진의 설정이 공개되어 있지 않아 이름, 버전, 모델만 비교했습니다.",
    "The engine's configuration is not open in the {arm}: names, versions and models alone were compared.": "{arm} 엔진의 설정이 공개되어 "
    "있지 않아 이름, 버전, 모델만 비교했습니다.",
    "Arm by arm: the candidate is asked after the baseline and not along with it, so that whatever else changes meanwhile (load, drivers, "
    "clocks) counts as the drafter's: not for sign-off.": "한 서버씩 차례로 실행: 후보에 기준과 번갈아 요청하지 않고 기준이 끝난 뒤에 요청하므로, 그사이에 "
    "달라진 것(부하, 드라이버, 클록)이 모두 드래프터의 영향으로 보입니다. 승인에 쓸 수 없습니다.",
    "The candidate's turn began {span} after the baseline's.": "후보 실행은 기준 실행보다 {span} 뒤에 시작했습니다.",
    "the arms were asked one after the other": "두 서버에 차례로 요청함",
    "What the engines are was not recorded.": "엔진 정보가 기록되지 않았습니다.",
    "{task}: the {arm}'s engine started anew while it was asked, or several take turns behind its URL": "{task}: 요청 중에 {arm} 엔진이 다시 "
    "시작되었거나, 한 URL 뒤에서 여러 엔진이 번갈아 응답함",
    "The {arm}'s engine was started anew before the run went on at {time}.": "{time}(UTC)에 실행을 이어 가기 전 {arm} 엔진이 다시 시작되었습니다.",
    "The {arm}'s engine finished {n} requests that were not this run's: what its counters say of drafting is theirs too.": "{arm} 엔진이 이 실행과 "
    "무관한 요청 {n}건을 처리했습니다. 드래프트 카운터에는 그 요청도 들어 있습니다.",
    "The {arm}'s engine read {n} prompt tokens that were not this run's.": "{arm} 엔진이 이 실행과 무관한 프롬프트 토큰 {n}개를 읽었습니다.",
    # why settings differ
    "the drafter itself": "드래프터 자체",
    "the drafter's weights and cache leave less room for the model's cache": "드래프터의 가중치와 캐시만큼 모델 캐시가 줄어듦",
    "fewer requests run at once where there is a drafter": "드래프터가 있으면 동시에 처리하는 요청 수가 줄어듦",
    "room for draft tokens is kept in each step": "스텝마다 드래프트 토큰 자리를 비워 둠",
    "the engine turns it off for some drafters": "일부 드래프터에서 엔진이 끔",
    "set from async_scheduling": "async_scheduling에 따라 정해짐",
    "graphs are captured for a token and its drafts together": "토큰과 드래프트를 묶어 그래프를 캡처함",
    "whether answers say what was drafted": "응답에 드래프트 내역을 넣을지 여부",
    **imports.FORMS,
    # last: what begins with a metric's id
    "{metric}: {part}; a lossless drafter should not improve anything either": "{metric}: {part}. 무손실 드래프터라면 점수가 좋아져서도 안 됨",
    "{metric}: {part}": "{metric}: {part}",
}
WORDS = {
    "baseline": "기준",
    "candidate": "후보",
    "nothing that decides": "판정에 쓰이는 것은 없음",
    "complete pairs": "완전한 쌍만 사용",
    "missing counted as wrong": "누락을 오답으로 처리",
    "worst case against the candidate": "후보에게 가장 불리하게 처리",
    "worst case against the baseline": "기준에게 가장 불리하게 처리",
    "http error": "HTTP 오류",
    "no final answer": "최종 답 없음",
    "bad body": "읽을 수 없는 응답",
    "timeout": "시간 초과",
    "connection error": "연결 오류",
    "rejected": "거부됨",
    "EQUIVALENT": "동등",
    "NON_INFERIOR": "비열등",
    "REGRESSION": "품질 저하",
    "IMPROVEMENT": "개선",
    "INCONCLUSIVE": "판단 보류",
    "INVALID": "무효",
}
"""What forms name by a word."""
_PLACE = re.compile(r"\{(\w+)\}")
_SHAPES = {
    "n": r"[\d,.]+",
    "p": r"<?[\d.e+−-]+",
    "x": r"[\d.]+",
    "pp": r"[+−]?[\d.]+",
    "bounds": r"[±−]?[\d.]+ pp(?: (?:and|to) [±−]?[\d.]+ pp)*",
    "wanted": r"(?:about|more than) [\d,]+(?: \([^)]+\))?",
    "share": r"[\d.]+ %",
    "time": r"[\d: -]+",
    "metric": r"\S+",
    "task": r"\S+",
}
_ANYTHING = r".+?"
SAID_ANEW: Mapping[str, Callable[[str], str]] = {
    "bounds": lambda text: text.replace(" and ", ", ").replace(" to ", " ~ "),
    "changes": lambda text: text.replace(" to ", " → "),
    "span": lambda text: text.replace(" min", "분").replace(" h", "시간").replace(" s", "초"),
}
"""What stands between the parts of such a place, by its kind."""


def in_korean(sentence: str) -> str | None:
    """The sentence in Korean; None where its form is not known."""
    if sentence in WORDS:
        return WORDS[sentence]
    for pattern, korean in _patterns():
        if (found := pattern.fullmatch(sentence)) and (parts := _parts(found.groupdict())) is not None:
            return korean.format(**parts)
    return None


def _parts(found: Mapping[str, str]) -> dict[str, str] | None:
    """What stands in a sentence's places, in Korean; None where a part of it is not known."""
    said: dict[str, str] = {}
    for name, text in found.items():
        kind = name.partition("_")[0]
        if kind == "parts":
            each = [in_korean(one) for one in text.split(", ")]
            korean = ", ".join(one for one in each if one) if all(each) else None
        elif kind in ("part", "wanted"):
            korean = in_korean(text)
        else:
            korean = WORDS.get(text, SAID_ANEW[kind](text) if kind in SAID_ANEW else text)
        if korean is None:
            return None
        said[name] = korean
    return said


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((_pattern(form), korean) for form, korean in FORMS.items())


def _pattern(form: str) -> re.Pattern[str]:
    """Matches the sentences of a form, a group for each place."""
    pieces = _PLACE.split(form)
    return re.compile(
        "".join(_group(piece) if odd % 2 else re.escape(piece) for odd, piece in enumerate(pieces)), re.DOTALL
    )


def _group(name: str) -> str:
    return f"(?P<{name}>{_SHAPES.get(name.partition('_')[0], _ANYTHING)})"
