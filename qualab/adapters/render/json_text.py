"""The report's model as JSON: every text that people see, with the number behind it."""

from __future__ import annotations

import json

from qualab.domain.canonical import plain
from qualab.domain.report import ReportModel


def render_json(report: ReportModel) -> bytes:
    """Indented UTF-8."""
    return (json.dumps(plain(report), ensure_ascii=False, indent=2) + "\n").encode()
