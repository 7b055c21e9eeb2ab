from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capataz.sandbox.resident import wire

_FRAME = st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.lists(st.binary(max_size=50), max_size=5))


@settings(max_examples=40)
@given(st.lists(_FRAME, max_size=3), st.data())
def test_frames_survive_any_cutting(frames, data) -> None:
    stream = b"".join(wire.pack(op, id, a, b, *blobs) for op, id, a, b, blobs in frames)
    decoder, found, at = wire.Decoder(), [], 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream) - at))
        found += decoder.feed(stream[at : at + step])
        at += step
    assert [(f.op, f.id, f.a, f.b, f.blobs) for f in found] == frames


@given(st.binary(min_size=wire.HEAD.size, max_size=200))
def test_junk_is_refused_or_waited_for(junk: bytes) -> None:
    try:
        wire.Decoder().feed(junk)
    except ValueError:
        pass


def test_a_frame_over_the_limit_is_refused_before_it_arrives() -> None:
    with pytest.raises(ValueError):
        wire.Decoder().feed(wire.HEAD.pack(wire.MAX_BODY + 1, 1, 1, 0, 0, 0))
