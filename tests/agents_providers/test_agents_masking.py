from __future__ import annotations

import base64
import json
from urllib.parse import quote

from capataz.contracts.masking import MASK, Masker, mask_shapes, one_line

KEY = 'k"ey/+ü-with/odd=characters'


def test_every_form_of_a_secret_is_masked() -> None:
    masker = Masker([KEY])
    for form in (KEY, quote(KEY, safe=""), json.dumps(KEY), base64.b64encode(KEY.encode()).decode()):
        assert KEY not in masker.text(f"say {form} twice {form}")
        assert MASK in masker.text(form)
        assert form in masker


def test_a_secret_inside_a_longer_one_leaves_no_rest() -> None:
    assert Masker(["abcdef", "abcdef-tail"]).text("x abcdef-tail y") == f"x {MASK} y"


def test_short_and_blank_values_are_no_secrets() -> None:
    assert Masker(["", "  ", "a", "short"]).text("a short text") == "a short text"


def test_secrets_added_later_count_and_json_is_masked_throughout() -> None:
    masker = Masker()
    masker.add("token-123456")
    value = {"a": ["token-123456", 1, None], "token-123456": {"b": True}}
    assert "token-123456" not in json.dumps(masker.json(value))
    assert masker.json(value)["a"][1:] == [1, None]


def test_shapes_of_keys_are_masked() -> None:
    assert mask_shapes("Incorrect API key provided: sk-proj-abcd1234****wxyz.") == f"Incorrect API key provided: {MASK}."
    assert mask_shapes("Authorization: Bearer abcdefghijkl") == f"Authorization: Bearer {MASK}"
    assert mask_shapes("an ordinary sentence about risk-taking skeletons") == "an ordinary sentence about risk-taking skeletons"


def test_one_line_folds_and_cuts() -> None:
    assert one_line(" a\n\n b\t c ") == "a b c"
    assert len(one_line("x" * 1000)) == 300
