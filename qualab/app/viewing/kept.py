"""Reports that were asked for lately: made once for what is stored, and again once that has changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from qualab.app.reporting.model import report_model
from qualab.app.service.desk import Desk
from qualab.app.signing import newest_seal
from qualab.domain.names import Language
from qualab.domain.report import ReportModel

MOST = 32


class Reports:
    """Report models by what they are made of. Threads may share it."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._made: OrderedDict[Hashable, ReportModel] = OrderedDict()
        self._lock = Lock()

    def get(self, comparison_id: str, language: Language) -> ReportModel:
        """As `report_model`, whose errors it raises. An analysis is never changed: its seal tells it from others."""
        key = self._key(comparison_id, language)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        made = report_model(self._desk.services.store, self._desk.registry, comparison_id, language)
        with self._lock:
            self._made[key] = made
            if len(self._made) > MOST:
                self._made.popitem(last=False)
        return made

    def _key(self, comparison_id: str, language: Language) -> Hashable:
        store = self._desk.services.store
        comparison = store.get(comparison_id)
        signed = tuple(
            (one.signed_at, one.signed_by, one.verdict) for one in self._desk.registry.signoffs(comparison.id)
        )
        n_analyses = len(store.seals(comparison.id))
        return comparison.id, comparison.created_at, newest_seal(store, comparison), n_analyses, signed, language
