"""One prepared statement over and over, on libpq itself (``psycopg.pq``).

A cursor would cost more than the server does for a small commit: it adapts types, keeps a cache of statements and waits with
two registrations of the socket. The one statement that a kernel repeats for every effect goes without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakSet

import psycopg
from psycopg import pq

from capataz.store.connection import Connection


class Exchange:
    """``statement``: an SQL expression of ``$1``, ``$2``, … that gives one row of one text."""

    def __init__(self, name: str, types: str, statement: str) -> None:
        self._name = name.encode()
        self._prepare = f"PREPARE {name}({types}) AS {statement}".encode()
        self._prepared: WeakSet[Connection] = WeakSet()

    async def call(self, connection: Connection, values: Sequence[bytes]) -> str:
        """The text that the statement gives. Raises ``psycopg.Error`` as a cursor would. When this is cancelled the connection is
        left in the middle: whoever lent it closes it."""
        if connection not in self._prepared:
            await connection.execute(self._prepare, prepare=False)
            self._prepared.add(connection)
        pgconn = connection.pgconn
        pgconn.send_query_prepared(self._name, values)
        result = await _result(pgconn)
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(result, encoding=connection.info.encoding)
        return (result.get_value(0, 0) or b"").decode()


async def _result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult:
    """The first result of what was sent; the rest of the answer is read and dropped."""
    loop = asyncio.get_running_loop()
    descriptor = pgconn.socket
    arrived = asyncio.Event()
    loop.add_reader(descriptor, arrived.set)
    try:
        if pgconn.flush():
            await _flush(pgconn, loop, descriptor, arrived)
        first = await _next(pgconn, arrived)
        while await _next(pgconn, arrived) is not None:
            pass
    finally:
        loop.remove_reader(descriptor)
    if first is None:
        raise psycopg.OperationalError("the server ended its answer before it began")
    return first


async def _flush(pgconn: pq.abc.PGconn, loop: asyncio.AbstractEventLoop, descriptor: int, arrived: asyncio.Event) -> None:
    """A long statement: the server may want to be read before it takes more."""
    loop.add_writer(descriptor, arrived.set)
    try:
        while pgconn.flush():
            await arrived.wait()
            arrived.clear()
            pgconn.consume_input()
    finally:
        loop.remove_writer(descriptor)


async def _next(pgconn: pq.abc.PGconn, arrived: asyncio.Event) -> pq.abc.PGresult | None:
    while pgconn.is_busy():
        await arrived.wait()
        arrived.clear()
        pgconn.consume_input()
    return pgconn.get_result()
