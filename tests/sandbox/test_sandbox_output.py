from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from capataz.sandbox.output import Ring


@given(st.lists(st.binary(max_size=700), max_size=30), st.integers(0, 2000))
def test_head_and_tail_are_the_streams(chunks: list[bytes], limit: int) -> None:
    ring = Ring(limit)
    for chunk in chunks:
        ring.feed(chunk)
    whole = b"".join(chunks)
    kept, left_out, _ = ring.finish()
    assert ring.total == len(whole) and len(kept) <= limit
    if len(whole) <= limit:
        assert (kept, left_out) == (whole, 0)
        return
    mark = b"\n[... %d bytes left out ...]\n" % left_out if limit > 128 else b""
    size = len(kept) - len(mark)
    assert left_out == len(whole) - size
    head = size // 2
    assert kept == whole[:head] + mark + (whole[-(size - head) :] if size - head else b"")


@given(st.lists(st.binary(min_size=1, max_size=500), max_size=20), st.integers(0, 3000))
def test_the_spool_is_the_start_of_the_stream(tmp_path_factory, chunks: list[bytes], spool_limit: int) -> None:
    path: Path = tmp_path_factory.mktemp("spool") / "out"
    ring = Ring(200, path, spool_limit)
    for chunk in chunks:
        ring.feed(chunk)
    whole = b"".join(chunks)
    _, left_out, spool = ring.finish()
    assert (spool is not None) == (left_out > 0 and spool_limit > 0)
    if spool is not None:
        assert spool.read_bytes() == whole[:spool_limit]
