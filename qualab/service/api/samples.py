"""The examples in the API's description: one comparison, from its request to its verdict."""

from __future__ import annotations

from typing import Any

ID = "20260102-030405-0a1b2c3d"
HASH = "9f2d1c5e7a3b4f60815d2c7e9a4b6f3012d5c8e7f1a9b3c4d6e8f0a2b4c6d8e0"
AT = "2026-01-02T03:04:05Z"
PROVEN: dict[str, Any] = {
    "code": "all-equivalent",
    "values": {"n": 5, "bounds": {"code": "margin.both", "values": {"margin": 0.02}}},
    "text": "all 5 primary metrics are equivalent within ±2.00 pp",
}

EXPERIMENT: dict[str, Any] = {
    "baseline": "http://127.0.0.1:8000/v1",
    "candidate": "http://127.0.0.1:8001/v1",
    "model": "my-model",
    "tasks": "release",
    "margin": 0.02,
    "label": "nightly",
    "api_key": "env:QUALAB_KEY_VLLM",
}
SUMMARY: dict[str, Any] = {
    "id": ID,
    "status": "finished",
    "verdict": "EQUIVALENT",
    "label": "nightly",
    "model": "my-model",
    "suite": "release",
    "plan_hash": HASH,
    "n_items": 6412,
    "created_at": AT,
    "started_at": AT,
    "finished_at": AT,
    "stop_reason": "",
    "is_signed_off": False,
    "n_items_asked": None,
}
COMPARISON: dict[str, Any] = SUMMARY | {
    "status": "queued",
    "verdict": None,
    "suite": "",
    "plan_hash": "",
    "n_items": 0,
    "started_at": None,
    "finished_at": None,
    "has_ended": False,
    "request": {"status": "queued", "version": 1, "created_by": "ci", "error": {}, "experiment": EXPERIMENT},
}
COMPARISONS: dict[str, Any] = {"entries": [SUMMARY], "next_cursor": "Y29tcGFyaXNvbnMsMTc2NzMyMzA0NQ"}
VERDICT: dict[str, Any] = {
    "id": ID,
    "status": "finished",
    "has_ended": True,
    "verdict": "EQUIVALENT",
    "plan_hash": HASH,
    "label": "nightly",
    "model": "my-model",
    "finished_at": AT,
    "stop_reason": "",
    "error": {},
}
SIGNOFF: dict[str, Any] = {
    "comparison_id": ID,
    "plan_hash": HASH,
    "analysis_hash": HASH,
    "verdict": "EQUIVALENT",
    "signed_by": "Kim Minji",
    "note": "release 12",
    "override": "",
    "obstacles": [],
    "signed_at": AT,
}
SIGNOFFS: dict[str, Any] = {"entries": [SIGNOFF]}
VERIFICATION: dict[str, Any] = {
    "comparison_id": ID,
    "checks": [{"name": "plan", "is_ok": True, "detail": "its hash is 9f2d1c5e7a3b"}],
    "seal": HASH,
    "is_altered": False,
}
OUTCOME: dict[str, Any] = {
    "position": 17,
    "repeat": 0,
    "task": "gsm8k",
    "doc_id": 4,
    "kind": "generation",
    "change": "loss",
    "baseline": 1.0,
    "candidate": 0.0,
    "different_text": True,
    "length": 412,
}
OUTCOMES: dict[str, Any] = {"entries": [OUTCOME], "next_cursor": None}
REPLY: dict[str, Any] = {
    "status": "ok",
    "text": "4",
    "loglikelihood": None,
    "is_greedy": None,
    "finish_reason": "stop",
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "attempts": 1,
    "latency_s": 0.12,
    "sent_at": AT,
    "system_fingerprint": "",
    "error": "",
    "reasoning_characters": 0,
    "drafted": None,
    "model": "my-model",
    "reasoning": "",
}
ITEM: dict[str, Any] = {
    "position": 17,
    "task": "gsm8k",
    "doc_id": 4,
    "kind": "generation",
    "doc": {"question": "2 + 2?"},
    "target": "4",
    "requests": [
        {
            "choice": 0,
            "repeat": 0,
            "route": "completions",
            "body": '{"prompt":"2 + 2?","model":"my-model","max_tokens":256,"temperature":0,"seed":1234}',
            "sha256_begins": "8c1f0a2b3c4d5e6f8091a2b3c4d5e6f7",
        }
    ],
    "answers": [
        {
            "arm": "baseline",
            "choice": 0,
            "repeat": 0,
            "request_hash": "8c1f0a2b3c4d5e6f8091a2b3c4d5e6f7",
            "reply": REPLY,
        }
    ],
    "scores": [
        {
            "arm": "baseline",
            "position": 17,
            "repeat": 0,
            "metric": "exact_match,flexible-extract",
            "value": 1.0,
            "detail": None,
        }
    ],
}
PREFLIGHT: dict[str, Any] = {"engines": {}, "differences": [], "pins": [], "error": {}}
ENGINE: dict[str, Any] = {
    "kind": "vLLM",
    "version": "0.11.0",
    "model_root": "org/my-model",
    "max_model_len": 8192,
    "kv_cache_tokens": 220160,
}
DRAFTING: dict[str, Any] = {
    "task": "gsm8k",
    "n_answers": 1319,
    "rounds": 91200,
    "draft_tokens": 273600,
    "accepted_tokens": 150480,
    "accepted_share": 0.55,
    "mean_length": 2.65,
    "median_length": 3.0,
    "p10_length": 1.0,
    "zero_share": 0.21,
    "histogram": [19152, 20976, 22800, 28272],
    "request_mean_length": 2.7,
    "first_third": 2.66,
    "last_third": 2.64,
    "break_even_margin": None,
}
ACCEPTANCE: dict[str, Any] = {
    "is_observed": True,
    "engines": [
        ENGINE | {"arm": "baseline", "drafter": ""},
        ENGINE | {"arm": "candidate", "drafter": "eagle3, 3 tokens"},
    ],
    "tasks": [DRAFTING],
    "bins": [],
    "troubles": [],
    "notes": [],
    "break_even_length": None,
}
METRICS: dict[str, Any] = {
    "comparison_id": ID,
    "plan_hash": HASH,
    "verdict": "EQUIVALENT",
    "reasons": [PROVEN],
    "caveats": [],
    "metrics": [],
}
PLAN: dict[str, Any] = {"qualab_plan": 2, "hash": HASH, "frozen_at": AT, "plan": {"suite": "release"}}
PLANNED: dict[str, Any] = {
    "plan_hash": HASH,
    "document": None,
    "planning": {"power_each": 0.956, "joint_power": 0.83, "expected_missing": 0.001, "unproven": []},
}
ANALYSIS_NAMED: dict[str, Any] = {"plan_hash": HASH, "is_own_plan": True, "verdict": "EQUIVALENT", "hash": HASH}
ANALYSES: dict[str, Any] = {"entries": [ANALYSIS_NAMED]}
AUDIT: dict[str, Any] = {
    "entries": [{"at": AT, "who": "ci", "action": "comparison.create", "subject": ID, "details": {"label": "nightly"}}],
    "next_cursor": None,
}
EVENT = f'id: 3b1f0c2d4e5a6978\nevent: progress\ndata: {{"id":"{ID}","status":"running","phase":"asking"}}\n\n'
PLAN_REQUEST: dict[str, Any] = {
    "model": "my-model",
    "tasks": "release",
    "margin": 0.02,
    "expected_missing": 0.001,
    "assume": {"discordance": 0.05},
}
ANALYSIS: dict[str, Any] = {
    "comparison_id": ID,
    "plan_hash": HASH,
    "input_hash": HASH,
    "verdict": "EQUIVALENT",
    "reasons": [PROVEN],
    "caveats": [],
    "metrics": [],
    "suite": {
        "n_family": 5,
        "n_max_t": 5,
        "n_resamples": 9999,
        "global_test": {"n_metrics": 5, "difference": -0.0004, "pvalue": 0.71, "n_resamples": 9999},
        "missing": {
            "n_asked": 6409,
            "baseline_only": 0,
            "candidate_only": 0,
            "both": 0,
            "pvalue": 1.0,
            "left_out": 3,
            "by_status": [
                {"status": "rejected", "baseline_only": 0, "candidate_only": 0, "both": 3, "pvalue": 1.0},
            ],
        },
        "joint_power": 0.83,
        "joint_power_reason": None,
        "seed": 225502521490239,
    },
    "arms": [],
    "pairs": {
        "n_pairs": 6412,
        "same_text": 6301,
        "finish_reasons_differ": 0,
        "prompt_tokens_differ": 0,
        "request_hashes_differ": 0,
        "same_text_other_score": 0,
    },
    "versions": {"qualab": "0.2.0", "lm_eval": "0.4.13"},
    "looks": None,
    "treatment": ACCEPTANCE,
    "pinning": None,
    "noise": None,
    "repeats": None,
    "tokens": None,
    "reasoning": None,
    "leaks": [],
}
ANALYSED: dict[str, Any] = {"name": ANALYSIS_NAMED, "is_as_stored": True, "analysis": ANALYSIS}
REPORT: dict[str, Any] = {"comparison_id": ID, "plan_hash": HASH, "language": "en", "headline": "...", "sections": []}
