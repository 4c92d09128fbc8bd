"""An MCP server of the tests, of the kind that the `mcp` package shows: `python mcp_shop.py [stdio | PORT]`.

It leaves its pid in the file that MCP_SHOP_PIDS names, and acts as its tools are asked to.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

shop = MCPServer("shop")
READS = ToolAnnotations(read_only_hint=True)


@shop.tool(annotations=READS)
def price(item: str, count: int = 1) -> dict[str, Any]:
    """What an item costs."""
    return {"item": item, "cents": 250 * count}


@shop.tool(annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=True))
def order(item: str) -> str:
    """Order an item."""
    with Path(os.environ["MCP_SHOP_PIDS"]).with_suffix(".orders").open("a") as file:
        file.write(f"{item}\n")
    return f"ordered {item}"


@shop.tool(annotations=ToolAnnotations(destructive_hint=True))
def close_account(who: str) -> str:
    """Close an account."""
    return f"closed {who}"


@shop.tool()
def unknown() -> str:
    """Do something of which the server does not say what."""
    return "done"


@shop.tool(annotations=READS)
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@shop.tool(annotations=READS)
def break_down() -> str:
    """Raise."""
    raise ToolError("no such shelf")


@shop.tool(annotations=READS)
def die() -> str:
    """End the server."""
    os._exit(3)


@shop.tool(annotations=READS, structured_output=False)
def picture() -> list[Any]:
    """A text and a picture."""
    return ["a square", Image(data=b"12345", format="png")]


@shop.tool(annotations=READS)
async def stock_up(ctx: Context) -> str:
    """Have one tool more."""

    def fresh() -> str:
        """What is new."""
        return "new"

    shop.add_tool(fresh, name="fresh goods", annotations=READS)
    await ctx.notify_tools_changed()
    return "there is more"


@shop.tool(annotations=READS)
def environment() -> str:
    """Which variables it sees."""
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    with Path(os.environ["MCP_SHOP_PIDS"]).open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    if sys.argv[1:] == ["stdio"]:
        shop.run("stdio")
    else:
        shop.run("streamable-http", port=int(sys.argv[1]))
