"""Writes runs as lm-eval writes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATE = "2026-01-02T03-04-05.678901"
Row = dict[str, Any]


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def row(
    doc_id: int,
    doc: Mapping[str, Any],
    *,
    resps: Sequence[Any] = (),
    prompts: Sequence[str] = (),
    second: Sequence[Any] = (),
    target: Any = "1",
    ensemble: str = "none",
    **scores: Any,
) -> Row:
    """A sample as lm-eval holds it before it is written; `resps` are texts or (log-likelihood, is greedy).

    Without any there is one text, another one for other scores: scorers give the same text the same score.
    """
    resps = resps or (f"an answer that scores {scores}",)
    texts = list(prompts) or [f"Question: {doc}"] * len(resps)
    others = list(second) or [{"until": ["\n"], "temperature": 0.0}] * len(resps)
    return {
        "doc_id": doc_id,
        "doc": dict(doc),
        "target": target,
        "arguments": list(zip(texts, others, strict=True)),
        "resps": [[one] for one in resps],
        "filtered_resps": list(resps),
        "filter": ensemble,
        "metrics": list(scores),
        "doc_hash": sha(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": sha(texts[0]),
        "target_hash": sha(str(target)),
        **scores,
    }


def binary_rows(scores: Iterable[float], *, key: str = "exact_match") -> list[Row]:
    return [row(number, {"question": f"q{number}"}, **{key: score}) for number, score in enumerate(scores)]


@dataclass(kw_only=True)
class Run:
    samples: dict[str, list[Row]]
    version: str = "0.4.13"
    date: str = DATE
    configs: dict[str, Row] = field(default_factory=dict)
    more: Row = field(default_factory=dict)
    """Over the results document's own entries."""

    def document(self) -> Row:
        configs = {name: {"task": name, **self.configs.get(name, {})} for name in self.samples}
        base: Row = {
            "results": {name: {"alias": name} for name in self.samples},
            "group_subtasks": {name: [] for name in self.samples},
            "configs": configs,
            "versions": dict.fromkeys(self.samples, 1.0),
            "n-shot": dict.fromkeys(self.samples, 0),
            "config": {"model": "local-completions", "model_args": "model=m,base_url=http://x", "limit": None},
            "git_hash": "0",
        }
        base |= {"date": 1.7e9, "lm_eval_version": self.version, "model_name": "m", "chat_template_sha": None}
        base |= {"system_instruction": None}
        base |= {"higher_is_better": {name: {} for name in self.samples}, "fewshot_as_multiturn": False}
        return {**base, **self.more}

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"results_{self.date}.json").write_text(json.dumps(self.document(), indent=2), encoding="utf-8")
        for task, rows in self.samples.items():
            text = "".join(json.dumps(self._written(one), ensure_ascii=False) + "\n" for one in rows)
            (folder / f"samples_{task}_{self.date}.jsonl").write_text(text, encoding="utf-8")
        return folder

    def _written(self, one: Row) -> Row:
        """Name arguments, and make texts of responses."""
        arguments = {
            f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(parts)}
            for i, parts in enumerate(one["arguments"])
        }
        more = {"arguments": arguments, "resps": texts(one["resps"]), "filtered_resps": texts(one["filtered_resps"])}
        return {**one, **more, "target": str(one["target"])}


def texts(value: Any) -> Any:
    return (
        [texts(part) for part in value] if isinstance(value, list | tuple) else (None if value is None else str(value))
    )
