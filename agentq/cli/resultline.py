"""A result as one line of output: what the OpenAI Batch API writes, and `agentq` beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentq.cli.answerbody import answer_body

if TYPE_CHECKING:
    from agentq.app import Result


def result_line(result: Result) -> dict[str, Any]:
    """The line of one ended run.

    A run that a failure ended has an `error`, and a `response` all the same when it still answered.
    """
    return {
        "id": result.run_id,
        "custom_id": result.custom_id,
        "response": _response(result),
        "error": result.error,
        "agentq": {
            "agent": result.agent,
            "model": result.model or None,
            "state": result.state,
            "stop_reason": result.stop_reason.value,
            "stop_scope": result.stop_scope,
            "stop_detail": result.stop_detail,
            "stopped_at": result.stopped_at,
            "generation": result.generation,
            "answer": result.answer or None,
            "output": as_json(result.output),
            "steps": result.steps,
            "usage": {
                "input_tokens": result.usage.input_tokens,
                "output_tokens": result.usage.output_tokens,
            },
            "usd": f"{result.usd:f}",
            "attempts": result.attempts,
            "metadata": result.metadata,
            "started_at": seconds(result.started_ms),
            "ended_at": seconds(result.ended_ms),
        },
    }


def as_json(output: Any) -> Any:
    """An output as a JSON value: that of a model's instance, or what it is."""
    dump = getattr(output, "model_dump", None)
    return output if dump is None else dump(mode="json", by_alias=True)


def seconds(milliseconds: int | None) -> float | None:
    """Milliseconds since 1970 as the seconds that the files carry."""
    return None if milliseconds is None else milliseconds / 1000


def _response(result: Result) -> dict[str, Any] | None:
    """The reply of a run that has finished, if only with an empty answer, or that a budget let answer."""
    if not result.answer and not result.stop_reason.is_success:
        return None
    return {"status_code": 200, "request_id": result.run_id, "body": answer_body(result)}
