"""Loopback ports inside that lead to unix sockets of ours outside, and nowhere else.

The helper accepts inside and hands the connection over; the worker joins it to the one path that the spec names for the
port. Nothing inside ever holds a descriptor or a path of the host.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_CHUNK = 64 << 10
_MAX_OPEN = 128


class Forwards:
    """The joined connections of one session; ``close`` ends all."""

    def __init__(self, targets: Mapping[int, Path]) -> None:
        self._targets = dict(targets)
        self._tasks: set[asyncio.Task[None]] = set()

    def connected(self, port: int, fds: list[int]) -> None:
        """Takes a connection that was accepted inside."""
        target = self._targets.get(port)
        if not fds:
            return
        if target is None or len(self._tasks) >= _MAX_OPEN:
            os.close(fds[0])
            return
        task = asyncio.get_running_loop().create_task(_join(fds[0], target))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _join(fd: int, target: Path) -> None:
    inside = socket.socket(fileno=fd)
    inside.setblocking(False)
    writers: list[asyncio.StreamWriter] = []
    try:
        inside_reader, inside_writer = await asyncio.open_connection(sock=inside)
        writers.append(inside_writer)
        outside_reader, outside_writer = await asyncio.open_unix_connection(str(target))
        writers.append(outside_writer)
        await asyncio.gather(_copy(inside_reader, outside_writer), _copy(outside_reader, inside_writer))
    except OSError:
        pass                                   # the other end sees a closed connection, as with any server that is away
    finally:
        for writer in writers:
            writer.close()
        if not writers:
            inside.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
