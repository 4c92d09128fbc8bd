"""The smallest dialect that there can be, for what all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentq.provider.httpmodel import HttpModel
from agentq.provider.types import ChatRequest, ChatResult, Usage


class Small(HttpModel):
    """Says what it is asked, as it is."""

    dialect = "openai-chat"
    path = "/talk"
    vendor = "small"
    key_variable = "SMALL_API_KEY"
    url_variable = "SMALL_BASE_URL"
    public_url = "https://api.openai.com/v1"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"x-api-key": key} if key else {}

    def body(self, req: ChatRequest) -> dict[str, Any]:
        return {"model": self.model, "messages": [message.as_dict() for message in req.messages]}

    def result(self, data: Mapping[str, Any], req: ChatRequest) -> ChatResult:
        return ChatResult(data["text"], Usage(int(data["in"]), data["out"]), self.provider, self.model)
