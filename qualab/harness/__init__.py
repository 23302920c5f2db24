"""lm-evaluation-harness: loads tasks, renders requests, scores answers, aggregates."""
