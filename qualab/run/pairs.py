"""A table of a comparison's pairs: one row an item and repeat, with both arms' answers, scores and audit."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qualab.analysis.audit import ArmTokens, scored_parts
from qualab.analysis.flips import answer_text, change_of
from qualab.model.items import Answer, Item
from qualab.model.names import ArmName, AuditPart
from qualab.model.plan import deciding_metrics

if TYPE_CHECKING:
    import pandas as pd

    from qualab.store import Store

OF_PAIR = {"item": "string", "task": "string", "doc_id": "int64", "repeat": "int64", "cluster": "string"}
OF_PAIR |= {"target": "string", "metric": "string", "change": "string"}
OF_ARM = {"score": "float64", "text": "string", "status": "string", "finish_reason": "string"}
OF_ARM |= {"prompt_tokens": "Int64", "completion_tokens": "Int64", "latency_s": "float64", "retries": "Int64"}
OF_ARM |= {"foreign_tokens": "Int64", "largest_gap": "float64"}
COLUMNS = OF_PAIR | {f"{arm}_{name}": kind for arm in ArmName for name, kind in OF_ARM.items()}
"""Columns and their types; Int64 are those that may be missing."""
FORMULA = r"^(?=[=+\-@\t\r\n＝＋－＠])"


def pairs_of(store: Store, comparison_id: str) -> pd.DataFrame:
    """Read the table, by task and document; columns of an arm begin with its name.

    Scores are those of the task's deciding metric, named in `metric`; the audit's numbers those of greedy answers. What
    is not known is missing, never 0. Raises ComparisonNotFound.
    """
    import pandas as pd  # noqa: PLC0415  # takes longer than the rest of a command

    comparison = store.get(comparison_id)
    items, deciding = list(store.items(comparison.id)), deciding_metrics(comparison.plan.metrics)
    facts: dict[tuple[int, int], dict[ArmName, dict[str, Any]]] = {}

    def add(arm: ArmName, position: int, repeat: int, values: dict[str, Any]) -> None:
        facts.setdefault((position, repeat), {own: {} for own in ArmName})[arm] |= values

    for arm in ArmName:
        answers: dict[tuple[int, int], list[Answer]] = {}
        for answer in store.answers(comparison.id, arm=arm):
            answers.setdefault((answer.position, answer.repeat), []).append(answer)
        for (position, repeat), own in answers.items():
            add(arm, position, repeat, _of_answers(items[position], own))
    for score in store.scores(comparison.id):
        metric = deciding.get(items[score.position].task)
        if metric and metric.key == score.metric:
            add(score.arm, score.position, score.repeat, {"score": score.value})
    for (part, arm), tokens in scored_parts(store, comparison).items():
        if part is AuditPart.GREEDY:
            for position, values in _of_audit(tokens).items():
                add(arm, position, 0, values)
    rows = []
    for (position, repeat), of_arms in facts.items():
        item, metric = items[position], deciding.get(items[position].task)
        before, after = (own.get("score") for own in of_arms.values())
        row = {name: getattr(item, "id" if name == "item" else name, None) for name in OF_PAIR}
        row |= {"repeat": repeat, "metric": metric and metric.key, "change": change_of(before, after, metric).value}
        rows.append(row | {f"{arm}_{name}": own.get(name) for arm, own in of_arms.items() for name in OF_ARM})
    rows.sort(key=lambda row: (row["task"], row["doc_id"], row["repeat"]))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _of_answers(item: Item, answers: Sequence[Answer]) -> dict[str, Any]:
    """Join the replies to an item's requests: one, or one a choice."""
    replies = [answer.reply for answer in answers]
    counts = {name: [getattr(reply, name) for reply in replies] for name in ("prompt_tokens", "completion_tokens")}
    return {
        "text": answer_text(item, answers) if all(reply.status.is_answer for reply in replies) else None,
        "status": min(replies, key=lambda reply: reply.status.is_answer).status.value,
        "finish_reason": ",".join(dict.fromkeys(reply.finish_reason for reply in replies)),
        "latency_s": sum(reply.latency_s for reply in replies),
        "retries": sum(reply.attempts - 1 for reply in replies),
        **{name: None if None in own else sum(own) for name, own in counts.items()},
    }


def _of_audit(own: ArmTokens) -> dict[int, dict[str, Any]]:
    """Map positions to what the audit says of their answers."""
    n_foreign = own.tokens.by_answer(own.is_foreign).tolist()
    largest = np.maximum.reduceat(own.tokens.gaps, own.tokens.starts).tolist()
    return {
        answer.position: {"foreign_tokens": int(number), "largest_gap": gap}
        for answer, number, gap in zip(own.answers, n_foreign, largest, strict=True)
    }


def encoded_pairs(pairs: pd.DataFrame, *, is_csv: bool) -> bytes:
    """Encode the table as Parquet, or as CSV for a spreadsheet.

    CSV is UTF-8 with a byte order mark, without which spreadsheets misread it; an apostrophe goes before a text that
    they would run as a formula.
    """
    file = io.BytesIO()
    if not is_csv:
        pairs.to_parquet(file, index=False)
        return file.getvalue()
    texts = [name for name, kind in COLUMNS.items() if kind == "string"]
    safe = {name: pairs[name].str.replace(FORMULA, "'", regex=True) for name in texts}
    pairs.assign(**safe).to_csv(file, index=False, encoding="utf-8-sig")
    return file.getvalue()
