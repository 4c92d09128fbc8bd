"""The shop behind the orders agent: two tables of SQLite and the tools that look into them.

The database is the file that `ORDERS_DB` (or the call's context, as `orders_db`) names. Without a name,
each process builds one of its own in a temporary folder and removes it when it ends.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from agentq.tools import CallContext, tool

DATABASE_ENV = "ORDERS_DB"

_SCHEMA = """
CREATE TABLE customers (customer_id TEXT PRIMARY KEY, name TEXT, city TEXT, since TEXT);
CREATE TABLE orders (
    order_id INTEGER PRIMARY KEY, customer_id TEXT REFERENCES customers, item TEXT, status TEXT,
    placed_on TEXT, total_cents INTEGER, note TEXT DEFAULT ''
);
"""

_CUSTOMERS = [
    ("c-01", "Mira Okafor", "Leeds", "2019-04-02"),
    ("c-02", "Jonas Lindqvist", "Uppsala", "2021-11-19"),
    ("c-03", "Priya Raman", "Chennai", "2020-07-30"),
    ("c-04", "Tomás Herrera", "Valencia", "2023-01-08"),
    ("c-05", "Aiko Mori", "Kobe", "2024-05-14"),
]

_ORDERS = [
    (1001, "c-01", "walnut desk", "delivered", "2025-01-09", 48_900),
    (1002, "c-02", "reading lamp", "processing", "2025-03-02", 7_450),
    (1003, "c-01", "desk chair", "shipped", "2025-02-21", 23_900),
    (1004, "c-03", "bookshelf", "delivered", "2025-01-28", 15_500),
    (1005, "c-04", "linen curtains", "processing", "2025-03-04", 9_800),
    (1006, "c-03", "floor rug", "returned", "2025-02-03", 18_200),
    (1007, "c-05", "tea table", "shipped", "2025-02-27", 31_000),
    (1008, "c-02", "wall clock", "processing", "2025-03-05", 4_250),
    (1009, "c-05", "oak shelf", "processing", "2025-03-06", 6_600),
    (1010, "c-04", "side board", "delivered", "2025-02-11", 52_300),
    (1011, "c-01", "coat rack", "processing", "2025-03-07", 5_900),
    (1012, "c-03", "plant stand", "cancelled", "2025-02-18", 3_700),
]


@tool
def find_orders(ctx: CallContext, customer_id: str, status: str = "") -> dict[str, Any]:
    """List a customer's orders, newest first. For one order whose number you have, use get_order. Read-only.

    Args:
        ctx: who is calling; never from the model.
        customer_id: such as c-01. To learn whose number it is use get_customer.
        status: only orders with this status: processing, shipped, delivered, returned or cancelled.
    """
    sql = "SELECT order_id, item, status, placed_on FROM orders WHERE customer_id = ? AND ? IN ('', status)"
    with _database(ctx) as db:
        rows = db.execute(f"{sql} ORDER BY placed_on DESC", (customer_id, status)).fetchall()
    return {"customer_id": customer_id, "orders": [dict(row) for row in rows]}


@tool
def get_order(ctx: CallContext, order_id: int) -> dict[str, Any]:
    """Fetch one order by its number. To list a customer's orders use find_orders. Read-only."""
    with _database(ctx) as db:
        row = db.execute("SELECT * FROM orders WHERE order_id = ?", (order_id,)).fetchone()
    return {"found": True, **dict(row)} if row else {"found": False, "order_id": order_id}


@tool
def get_customer(ctx: CallContext, customer_id: str) -> dict[str, Any]:
    """Fetch one customer by number: name, city, customer since. Knows nothing of orders. Read-only."""
    with _database(ctx) as db:
        row = db.execute("SELECT * FROM customers WHERE customer_id = ?", (customer_id,)).fetchone()
    return {"found": True, **dict(row)} if row else {"found": False, "customer_id": customer_id}


@tool
def build_report(ctx: CallContext, period: str) -> dict[str, Any]:
    """Add up the orders of one month, by status. Read-only.

    Args:
        ctx: who is calling; never from the model.
        period: a month as YYYY-MM, such as 2025-02.
    """
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", period):
        raise ValueError(f"period is a month as YYYY-MM, such as 2025-02; {period!r} is not")
    sql = "SELECT status, count(*) AS orders, sum(total_cents) AS total_cents FROM orders"
    with _database(ctx) as db:
        rows = db.execute(f"{sql} WHERE placed_on LIKE ? GROUP BY status ORDER BY status", (f"{period}-%",))
        return {"period": period, "by_status": [dict(row) for row in rows.fetchall()]}


@tool(side_effect=True, requires_approval=True)
def cancel_order(ctx: CallContext, order_id: int, reason: str) -> dict[str, Any]:
    """Cancel an order that is still processing. Changes data, so a person is asked first."""
    sql = "UPDATE orders SET status = 'cancelled', note = ? WHERE order_id = ? AND status = 'processing'"
    with _database(ctx) as db:
        changed = db.execute(sql, (reason, order_id)).rowcount
        db.commit()
    return {"order_id": order_id, "cancelled": bool(changed)}


TOOLS = (find_orders, get_order, get_customer, build_report, cancel_order)


def build(path: Path) -> None:
    """Make the database at `path`, as it is on the first day; one that is there already stays."""
    # Tools run on many threads, and each may be the first to need it.
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with closing(sqlite3.connect(draft)) as db:
        db.executescript(_SCHEMA)
        db.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", _CUSTOMERS)
        db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, '')", _ORDERS)
        db.commit()
    with suppress(FileExistsError):
        path.hardlink_to(draft)
    draft.unlink()


@contextmanager
def _database(ctx: CallContext) -> Iterator[sqlite3.Connection]:
    """A connection of this call's own: tools run on many threads."""
    named = (ctx.extra or {}).get("orders_db") or os.environ.get(DATABASE_ENV)
    path = Path(str(named)) if named else _own_database()
    if not path.exists():
        build(path)
    with closing(sqlite3.connect(path, timeout=10)) as db:
        db.row_factory = sqlite3.Row
        yield db


@cache
def _own_database() -> Path:
    folder = tempfile.mkdtemp(prefix="agentq-orders-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder) / "orders.db"
