"""One server, two dialects: redis-py's URL of it, and Celery's.

| redis-py                        | Celery                                       |
|---------------------------------|----------------------------------------------|
| `redis://host:6379/3`           | `redis://host:6379/3`                        |
| `redis://host:6379/?db=3`       | `redis://host:6379/3`                        |
| `rediss://host:6379/3`          | `rediss://host:6379/3?ssl_cert_reqs=required`|
| `unix:///run/r.sock?db=3`       | `redis+socket:///run/r.sock?virtual_host=3`  |

Each refuses or misreads the other's: Celery takes `?db=3` of a socket URL for database 0, silently.
"""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from agentq.core.errors import UsageError


def broker_url_for(redis_url: str) -> str:
    """Celery's URL of the server and database that redis-py's `redis_url` names.

    Options that tune redis-py (time-outs and the like) are left out; credentials and `ssl_…` are kept.
    `sentinel://…` is Celery's already and is returned as it is.

    Raises:
        UsageError: when it is no URL of a Redis server.
    """
    parts = urlsplit(redis_url)
    options = dict(parse_qsl(parts.query))
    match parts.scheme:
        case "sentinel":
            return redis_url
        case "redis" | "rediss":
            return _tcp(parts, options, redis_url)
        case "unix":
            return _socket(parts, options, redis_url)
        case "redis+socket":
            raise UsageError(
                "redis+socket:// is how Celery writes a socket; agentq makes that itself",
                hint=f"write unix://{parts.path}?db={options.get('virtual_host', '0')}",
            )
    raise UsageError(
        f"{parts.scheme or 'a text without scheme'} is not a Redis URL",
        hint="write redis://host:6379/0, rediss://host:6379/0 or unix:///path/to/socket?db=0",
    )


def _tcp(parts: SplitResult, options: dict[str, str], url: str) -> str:
    try:
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"the port in {url.rpartition('@')[2]} is not one: {error}") from None
    # As redis-py reads it: ?db= wins over the path.
    database = _database(options.get("db") or unquote(parts.path).replace("/", "") or "0", url)
    kept = {name: value for name, value in options.items() if name.startswith("ssl_")}
    if parts.scheme == "rediss":
        # redis-py verifies certificates unless told not to; kombu does not unless told to.
        kept.setdefault("ssl_cert_reqs", "required")
    host = parts.netloc.rpartition("@")[2] or "localhost"
    query = f"?{urlencode(kept)}" if kept else ""
    return f"{parts.scheme}://{_credentials(parts, options)}{host}/{database}{query}"


def _socket(parts: SplitResult, options: dict[str, str], url: str) -> str:
    database = _database(options.get("db") or "0", url)
    path = quote(unquote(parts.path))
    if not path:
        raise UsageError(f"{url} names no socket", hint="write unix:///path/to/socket?db=0")
    return f"redis+socket://{_credentials(parts, options)}{path}?virtual_host={database}"


def _credentials(parts: SplitResult, options: dict[str, str]) -> str:
    # Still percent-encoded in the URL, already decoded in the options; the URL wins, as in redis-py.
    user = parts.username or quote(options.get("username", ""), safe="")
    password = parts.password or quote(options.get("password", ""), safe="")
    if not user and not password:
        return ""
    return f"{user}:{password}@" if password else f"{user}@"


def _database(text: str, url: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"the database in {url} is {text!r}, not a number")
    return int(text)
