"""Bodies of the Responses interface as api.openai.com writes them, for tests."""

from __future__ import annotations

from typing import Any


def encrypted(name: str) -> str:
    """A thought that only the provider can read; escapes, slashes and padding are in real ones, too."""
    return f"gAAAAABo{name}-Xy_z+/Zq0==" * 4


def reasoning(name: str = "rs_1", *, summary: str = "", **more: Any) -> dict[str, Any]:
    """An item of reasoning with its thought encrypted."""
    said = [{"type": "summary_text", "text": summary}] if summary else []
    return {
        "id": name,
        "type": "reasoning",
        "encrypted_content": encrypted(name),
        "summary": said,
        **more,
    }


def message(
    text: str = "", *, refusal: str = "", status: str = "completed", annotations: Any = (), **more: Any
) -> dict[str, Any]:
    """What the assistant says."""
    part: dict[str, Any] = {"type": "refusal", "refusal": refusal}
    if not refusal:
        part = {"type": "output_text", "annotations": list(annotations), "logprobs": [], "text": text}
    return {
        "id": "msg_68a1",
        "type": "message",
        "status": status,
        "content": [part],
        "role": "assistant",
        **more,
    }


def phased(text: str, phase: str) -> dict[str, Any]:
    """What the assistant says, and at which point of its turn."""
    return message(text, phase=phase)


def asked(call_id: str, name: str, arguments: str = "{}", **more: Any) -> dict[str, Any]:
    """A call of a function."""
    return {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "status": "completed",
        "arguments": arguments,
        "call_id": call_id,
        "name": name,
        **more,
    }


def response(*items: dict[str, Any], cut: str = "", model: str = "gpt-5-2025-08-07", **more: Any) -> Any:
    """A body. `cut` is the reason why it is incomplete."""
    return {
        "id": "resp_68a1f2",
        "object": "response",
        "created_at": 1741476777.0,
        "status": "incomplete" if cut else "completed",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "instructions": None,
        "max_output_tokens": 500,
        "max_tool_calls": None,
        "model": model,
        "output": list(items),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": "medium", "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 1117,
            "input_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 64},
            "output_tokens": 46,
            "output_tokens_details": {"reasoning_tokens": 30},
            "total_tokens": 1163,
        },
        "user": None,
        "metadata": {},
        **more,
    }
