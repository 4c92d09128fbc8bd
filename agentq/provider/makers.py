"""What an import adds to its source by our own knowledge: dated ids, and families of tokenizers.

Both end up as data in the file of prices, one entry at a time, where a person reviews them. At run time
nothing is looked up by a prefix.
"""

from __future__ import annotations

_DATED: dict[tuple[str, str], tuple[str, ...]] = {
    ("anthropic", "claude-3-haiku"): ("claude-3-haiku-20240307",),
    ("anthropic", "claude-3-opus-latest"): ("claude-3-opus-20240229",),
    ("anthropic", "claude-3-sonnet"): ("claude-3-sonnet-20240229",),
    ("anthropic", "claude-3-5-haiku-latest"): ("claude-3-5-haiku-20241022",),
    ("anthropic", "claude-3-5-sonnet"): (
        "claude-3-5-sonnet-20240620",
        "claude-3-5-sonnet-20241022",
        "claude-3-5-sonnet-latest",
    ),
    ("anthropic", "claude-3-7-sonnet-latest"): ("claude-3-7-sonnet-20250219",),
    ("anthropic", "claude-sonnet-4-0"): ("claude-sonnet-4-20250514",),
    ("anthropic", "claude-opus-4-1"): ("claude-opus-4-1-20250805",),
    ("anthropic", "claude-sonnet-4-5"): ("claude-sonnet-4-5-20250929",),
    ("anthropic", "claude-haiku-4-5"): ("claude-haiku-4-5-20251001",),
    ("anthropic", "claude-opus-4-5"): ("claude-opus-4-5-20251101",),
    ("google", "gemini-2.0-flash"): ("gemini-2.0-flash-001",),
    ("google", "gemini-2.0-flash-lite"): ("gemini-2.0-flash-lite-001",),
    ("openai", "gpt-5-nano"): ("gpt-5-nano-2025-08-07",),
    ("openai", "o1"): ("o1-2024-12-17",),
    ("openai", "o1-mini"): ("o1-mini-2024-09-12",),
    ("openai", "o3"): ("o3-2025-04-16",),
    ("openai", "o3-mini"): ("o3-mini-2025-01-31",),
    ("openai", "o4-mini"): ("o4-mini-2025-04-16",),
}
"""Ids with a date that the source has as a pattern only. An import takes those that the source agrees to."""

_BYTE_BPE = "byte-bpe"
_SENTENCEPIECE = "sentencepiece"

_BY_MAKER: dict[str, tuple[tuple[str, str], ...]] = {
    # tiktoken publishes r50k, p50k, cl100k and o200k; every text model of OpenAI so far uses one of them.
    "openai": (("", _BYTE_BPE),),
    "anthropic": (("claude", "anthropic"),),
    # Google's SDKs count these Gemini with the tokenizers of Gemma 2, 3 and 4.
    "google": tuple(
        (name, _SENTENCEPIECE)
        for name in ("gemini-1", "gemini-2", "gemini-3-", "gemini-3.1-", "gemini-3.5-", "gemma")
    ),
    # SentencePiece with byte fallback, later Tekken, which is byte-level: the wider bound holds for both.
    "mistralai": tuple(
        (name, _SENTENCEPIECE)
        for name in ("mistral", "mixtral", "codestral", "devstral", "ministral", "magistral", "pixtral")
    ),
    # Published tokenizer.json files with a ByteLevel pre-tokenizer, or tiktoken's format.
    "deepseek": (
        ("deepseek-chat-v3", _BYTE_BPE),
        ("deepseek-r1", _BYTE_BPE),
        ("deepseek-v3", _BYTE_BPE),
    ),
    "meta-llama": (("llama-3", _BYTE_BPE), ("llama-4-", _BYTE_BPE), ("llama-guard-4-", _BYTE_BPE)),
    "qwen": (("qwen-2.5", _BYTE_BPE), ("qwen2.5", _BYTE_BPE), ("qwen3-", _BYTE_BPE), ("qwq-", _BYTE_BPE)),
    "moonshotai": (("kimi-k2-", _BYTE_BPE),),
    "z-ai": (("glm-4.5-", _BYTE_BPE), ("glm-4.6-", _BYTE_BPE)),
}
_GROQ = (
    ("llama-3", _BYTE_BPE),
    ("llama3", _BYTE_BPE),
    ("gemma", _SENTENCEPIECE),
    ("mixtral", _SENTENCEPIECE),
)


def dated_ids(provider: str, model: str) -> tuple[str, ...]:
    """Ids with a date that mean the model."""
    return _DATED.get((provider, model), ())


def family_of(provider: str, model: str) -> str:
    """The family of the model's tokenizer where that is published or was measured, else an empty text."""
    maker, slash, name = model.partition("/")
    if slash:
        rules = _BY_MAKER.get(maker, ())
    elif provider == "groq":
        rules, name = _GROQ, model
    else:
        rules, name = _BY_MAKER.get("mistralai" if provider == "mistral" else provider, ()), model
    return next((family for start, family in rules if f"{name}-".startswith(start)), "")
