"""An answer as the body of a provider's reply: what official SDKs read out of the output of a batch.

The body that the provider sent goes before what is made here, so that of a run of one call nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentq.app import Result


def answer_body(result: Result) -> dict[str, Any]:
    """The body in the dialect of the line: a `chat.completion`, a `response` or a `message`."""
    made = _MADE.get(result.dialect, _completion)(result)
    return made | (result.body or {})


def _is_cut(result: Result) -> bool:
    """Whether it says less than it would: a cap on its output was reached, or a budget of its run."""
    return result.is_cut or result.stop_reason.is_budget


def _completion(result: Result) -> dict[str, Any]:
    usage = result.usage
    return {
        "id": result.run_id,
        "object": "chat.completion",
        "created": _created(result),
        "model": _model(result),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": result.answer, "refusal": None},
                "logprobs": None,
                "finish_reason": "length" if _is_cut(result) else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
        },
    }


def _response(result: Result) -> dict[str, Any]:
    usage, cut = result.usage, _is_cut(result)
    status = "incomplete" if cut else "completed"
    text = {"type": "output_text", "text": result.answer, "annotations": []}
    return {
        "id": result.run_id,
        "object": "response",
        "created_at": _created(result),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "metadata": {},
        "model": _model(result),
        "output": [
            {
                "type": "message",
                "id": f"msg_{result.run_id}",
                "status": status,
                "role": "assistant",
                "content": [text],
            }
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total_tokens,
        },
    }


def _message(result: Result) -> dict[str, Any]:
    return {
        "id": result.run_id,
        "type": "message",
        "role": "assistant",
        "model": _model(result),
        "content": [{"type": "text", "text": result.answer}] if result.answer else [],
        "stop_reason": "max_tokens" if _is_cut(result) else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": result.usage.input_tokens, "output_tokens": result.usage.output_tokens},
    }


_MADE: dict[str, Callable[[Result], dict[str, Any]]] = {
    "openai-chat": _completion,
    "openai": _response,
    "anthropic": _message,
}


def _created(result: Result) -> int:
    return (result.ended_ms or 0) // 1000


def _model(result: Result) -> str:
    """The model's id; of a run that ended before models were kept, its agent's name."""
    return result.model or result.agent
