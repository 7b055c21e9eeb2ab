from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from capataz.agents.models import ModelsConfig
from capataz.contracts.errors import InvalidPolicy, ProviderRejected, UsageError
from capataz.contracts.journal import Usage

LOCAL = {"base_url": "http://127.0.0.1:8000/v1", "prices": {"input": 1, "output": 2}, "models": ["qwen"], "window": 32000}


def config(**table: Any) -> ModelsConfig:
    return ModelsConfig(table)


def test_names_and_aliases_resolve() -> None:
    models = config(fast="openai/gpt-5-mini", quick="fast", default="anthropic/claude-sonnet-4-5", local=LOCAL)
    assert models.resolve("openai/gpt-5") == "openai/gpt-5"
    assert models.resolve("quick") == "openai/gpt-5-mini"
    assert models.resolve(None) == "anthropic/claude-sonnet-4-5"
    assert models.resolve(None, default="local/qwen") == "local/qwen"
    assert models.resolve("review") == "anthropic/claude-sonnet-4-5", "an unset standard alias is the default model"
    assert models.resolve("review", default="fast") == "openai/gpt-5-mini"
    assert models.resolve("local") == "local/qwen", "an endpoint of one model may be named alone"
    assert models.resolve("local/deep/seek:7b") == "local/deep/seek:7b"


def test_scripts_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = ModelsConfig().resolve("scripted:a b/ü.py")
    assert model == f"scripted:{tmp_path}/a b/ü.py"
    with pytest.raises(UsageError, match="no such file"):
        ModelsConfig().check(model)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b/ü.py").write_text("def respond(call): ...")
    ModelsConfig().check(model)
    assert ModelsConfig().client(model).model == model


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (None, "no model is given"),
        ("opnai/gpt-5", "did you mean openai/gpt-5"),
        ("nothing/like/it", r"\[models.nothing\]"),
        ("gpt-5-mini", "did you mean openai/gpt-5-mini"),
        ("fats", "did you mean fast"),
        ("openai/", "PROVIDER/ID"),
        ("/gpt", "PROVIDER/ID"),
        ("scripted:", "path of a script"),
        ("scripted/x.py", "unknown provider 'scripted'"),
        ("strong", "no model is given"),
        ("a", "refers to itself"),
    ],
)
def test_what_is_no_model_is_said_in_one_line(name: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        config(fast="openai/gpt-5-mini", a="b", b="a").resolve(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"x": {}}, "needs a base_url"),
        ({"x": {"base_url": "ftp://x"}}, "http://"),
        ({"x": {"base_url": "http://x", "base_ulr": 1}}, "did you mean base_url"),
        ({"x": {"base_url": "http://x", "api": "smtp"}}, "api must be one of"),
        ({"x": {"base_url": "http://x", "prices": {"input": 1}}}, "dollars for a million"),
        ({"x": {"base_url": "http://x", "prices": {"input": -1, "output": 1}}}, "zero or more"),
        ({"x": {"base_url": "http://x", "window": "big"}}, "number of tokens"),
        ({"x": {"base_url": "http://x", "stall": "soon"}}, "duration"),
        ({"x": {"base_url": "http://x", "api_key_env": [1]}}, "text or a list"),
        ({"x": {"base_url": "http://x", "api_key_command": "'"}}, "api_key_command"),
        ({"x": 5}, "alias"),
        ({"openai": "fast"}, "cannot be an alias"),
        ({"a/b": "fast"}, "cannot be an alias"),
    ],
)
def test_a_bad_table_is_said_in_one_line(table: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ModelsConfig(table)


def test_overrides_win() -> None:
    models = ModelsConfig({"fast": "openai/a"}, overrides={"fast": "openai/b"})
    assert models.resolve("fast") == "openai/b"


def test_a_repository_may_only_set_aliases() -> None:
    models = config(local=LOCAL, fast="openai/a")
    project = models.with_project({"fast": "local/qwen"}, trusted=False)
    assert project.resolve("fast") == "local/qwen" and models.resolve("fast") == "openai/a"
    for table in ({"openai": {"base_url": "http://evil"}}, {"fast": "scripted:evil.py"}, {"local": {"prices": {"input": 0, "output": 0}}}):
        with pytest.raises(InvalidPolicy):
            models.with_project(table, trusted=False)
    with pytest.raises(InvalidPolicy, match="cannot be an alias"):
        models.with_project({"openai": "local/qwen"}, trusted=False)
    assert models.with_project({"more": {"base_url": "http://x"}}, trusted=True).resolve("more/m") == "more/m"


def test_keys_are_checked_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    models = config(local=LOCAL)
    with pytest.raises(ProviderRejected, match="set OPENAI_API_KEY"):
        models.check("openai/gpt-5")
    with pytest.raises(ProviderRejected, match="GOOGLE_API_KEY or GEMINI_API_KEY"):
        models.check("google/gemini-2.5-pro")
    monkeypatch.setenv("GEMINI_API_KEY", "gemini-secret-1")
    models.check("google/gemini-2.5-pro")
    models.check("local/qwen")
    assert "gemini-secret-1" in models.known_secrets()
    assert models.masker.text("x gemini-secret-1") == "x [secret]"


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capataz.agents.providers.endpoint._importable", lambda module: False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "anthropic-secret")
    with pytest.raises(ProviderRejected, match=r'pip install "capataz\[anthropic\]"'):
        ModelsConfig().check("anthropic/claude-sonnet-4-5")


def test_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "openai-secret")
    rows = config(local=LOCAL, fast="openai/gpt-5-mini").list_models()
    by_model = {r.model: r for r in rows}
    assert by_model["local/qwen"].price is not None and by_model["local/qwen"].price.output == 2
    assert by_model["local/qwen"].window_tokens == 32000
    mini = by_model["openai/gpt-5-mini"]
    assert mini.aliases == ("fast",) and mini.usable and mini.window_tokens == 400_000 and mini.price is not None
    assert mini.price.input == Decimal("0.25") and mini.price.output == Decimal(2) and mini.price.cached == Decimal("0.025")
    anthropic = [r for r in rows if r.provider == "anthropic"]
    assert len(anthropic) == 1 and not anthropic[0].usable and "ANTHROPIC_API_KEY" in (anthropic[0].reason or "")


def test_prices() -> None:
    prices = config(local={**LOCAL, "prices": {"qwen": {"input": 1, "output": 2, "cached": "0.1"}}}, scripted={"prices": {"input": 3, "output": 3}}).prices()
    usage = Usage(input_tokens=1_000_000, cached_tokens=400_000, output_tokens=1_000_000)
    assert prices.price("local/qwen", usage) == Decimal("2.64")
    assert prices.price("local/other", usage) is None and prices.price("nobody/knows", usage) is None
    assert prices.price("scripted:/x.py", usage) == Decimal(6)
    assert ModelsConfig().prices().price("scripted:/x.py", usage) == 0
    known = ModelsConfig().prices().price("openai/gpt-5-mini", usage)
    assert known == Decimal("0.25") * Decimal("0.6") + Decimal("0.025") * Decimal("0.4") + 2
    assert ModelsConfig().prices().price("anthropic/claude-sonnet-4-5", Usage()) == 0


def test_cached_tokens_beyond_the_input_do_not_break_a_price() -> None:
    assert ModelsConfig().prices().price("openai/gpt-5-mini", Usage(input_tokens=10, cached_tokens=50)) is not None
