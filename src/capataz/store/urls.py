"""Database URLs: what they may be, what of them may be shown."""

from __future__ import annotations

import re
from typing import Any

from capataz.contracts.errors import StoreUnavailable

_EXAMPLE = "postgresql://USER:PASSWORD@HOST:5432/DATABASE"
_DEFAULTS: dict[str, Any] = {
    "application_name": "capataz",
    "connect_timeout": 10,
    "client_encoding": "utf8",
    "keepalives_idle": 30,
    "tcp_user_timeout": 20_000,
}


def masked(text: str) -> str:
    """``text`` without the passwords of URLs and ``password=`` settings in it."""
    text = re.sub(r"(://[^:/@\s]*:)[^@\s]*(?=@)", r"\1***", text)
    return re.sub(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", r"\1***", text, flags=re.IGNORECASE)


def parameters(url: str) -> dict[str, Any]:
    """libpq parameters of a URL or a ``key=value`` string. Raises ``StoreUnavailable`` that shows a good one."""
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    if "://" in url and url.partition("://")[0] not in ("postgresql", "postgres"):
        raise StoreUnavailable(f"{masked(url)!r} is no PostgreSQL URL; write CAPATAZ_DATABASE_URL as {_EXAMPLE}")
    try:
        given = conninfo_to_dict(url)
    except (Error, ValueError):                # libpq's message may quote the password
        raise StoreUnavailable(f"{masked(url)!r} is no PostgreSQL URL; write CAPATAZ_DATABASE_URL as {_EXAMPLE}") from None
    return _DEFAULTS | given


def where(parts: dict[str, Any]) -> str:
    """The server of these parameters, for messages: no password."""
    host = parts.get("host") or parts.get("hostaddr") or "the local socket"
    name = parts.get("dbname") or parts.get("user") or ""
    return f"{host}:{parts.get('port') or 5432}/{name}" if not str(host).startswith("/") else f"{host} ({name})"


def reason(error: BaseException, parts: dict[str, Any]) -> str:
    """One line of a driver's error, without the password."""
    line = masked(_primary(error) or type(error).__name__)
    secret = str(parts.get("password") or "")
    return line.replace(secret, "***") if len(secret) > 2 else line


def _primary(error: BaseException) -> str:
    """What went wrong: of a server's error its message without place and context, of libpq's the last attempt without its question."""
    said = getattr(getattr(error, "diag", None), "message_primary", None)
    lines = [line.strip() for line in str(said or error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Is the server running")]
    return " ".join(lines) if said else "".join(lines[-1:])
