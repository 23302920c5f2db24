"""What every list may be asked for."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

MOST_A_PAGE = 200


class Paged(BaseModel):
    """Unknown parameters are refused: a filter that is misspelled would show everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(50, ge=1, le=MOST_A_PAGE, description="Entries a page")
    cursor: str | None = Field(None, max_length=500, description="`next_cursor` of the page before")
