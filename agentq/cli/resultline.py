"""A result as one line of output: what the OpenAI Batch API writes, and `agentq` beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentq.app import Result
    from agentq.core.records import RunRecord


def result_line(result: Result, record: RunRecord) -> dict[str, Any]:
    """The line of one ended run.

    A run that a failure ended has an `error`, and a `response` all the same when it still answered.
    """
    return {
        "id": result.run_id,
        "custom_id": result.custom_id,
        "response": _response(result, record),
        "error": _error(result, record),
        "agentq": {
            "agent": record.spec.agent,
            "state": _text(result.state),
            "stop_reason": _text(result.stop_reason),
            "answer": result.answer,
            "output": result.output,
            "steps": result.steps,
            "usage": {
                "input_tokens": result.usage.input_tokens,
                "output_tokens": result.usage.output_tokens,
            },
            "usd": f"{result.usd:f}",
            "attempts": result.attempts,
            "metadata": dict(record.spec.metadata),
            "started_at": seconds(record.started_ms),
            "ended_at": seconds(record.ended_ms),
        },
    }


def seconds(milliseconds: int | None) -> float | None:
    """Milliseconds since 1970 as the seconds that the files carry."""
    return None if milliseconds is None else milliseconds / 1000


def _response(result: Result, record: RunRecord) -> dict[str, Any] | None:
    if result.answer is None:
        return None
    cut = result.stop_reason is not None and result.stop_reason.is_budget
    usage = result.usage
    return {
        "status_code": 200,
        "request_id": result.run_id,
        "body": {
            "id": result.run_id,
            "object": "chat.completion",
            "created": (record.ended_ms or record.created_ms) // 1000,
            "model": record.spec.agent,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": result.answer},
                    "finish_reason": "length" if cut else "stop",
                }
            ],
            "usage": {
                "prompt_tokens": usage.input_tokens,
                "completion_tokens": usage.output_tokens,
                "total_tokens": usage.total_tokens,
            },
        },
    }


def _error(result: Result, record: RunRecord) -> dict[str, str] | None:
    if result.stop_reason is None or not result.stop_reason.is_failure:
        return None
    message = (result.error or {}).get("message") or record.stop_detail or "the run ended without its answer"
    return {"code": result.stop_reason.value, "message": str(message)}


def _text(value: Any) -> Any:
    return getattr(value, "value", value)
