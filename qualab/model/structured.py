"""Items of task `stress` that are also asked with a schema, which the engine has to keep to."""

from __future__ import annotations

import json
from dataclasses import replace

from qualab.model.items import Item, Request, generation_request
from qualab.model.names import Api
from qualab.model.plan import SamplingPlan

STRESS = "stress"
FIELDS = ("response_format", "tools", "tool_choice")
"""Fields of an item's document that a request carries: JSON, empty where the item has none."""


def structured_request(item: Item, *, sampling: SamplingPlan) -> Request | None:
    """Make the item's greedy request with its response format or tools; None for an item without, or without chat."""
    if item.task != STRESS or sampling.api is not Api.CHAT:
        return None
    own = {name: json.loads(text) for name in FIELDS if (text := item.doc.get(name))}
    if not own:
        return None
    request = generation_request(item.prompts[0], sampling=sampling)
    return replace(request, payload={**request.payload, "temperature": 0, **own})
