"""What an exception of a provider's SDK, of Agno or of the HTTP layer below them means: one ``ProviderFailure``.

SDKs differ in classes and agree in names, and the HTTP library below them changes (httpx, httpx2, aiohttp): classes are
told by name, so that no SDK is imported to look at its errors.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

from capataz.agents.model_client import ProviderFailure
from capataz.agents.providers.loose import obj, objs

_CONTEXT = re.compile(
    r"context_length_exceeded|maximum context length|context window|prompt is too long|prompt too long|input (?:is )?too long"
    r"|input token count .*exceeds|exceeds the (?:available|maximum|model'?s?) (?:context|number of tokens)|too many (?:input )?tokens"
    r"|input exceeds|context size",
    re.IGNORECASE,
)
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded_permanently"})
_BY_TYPE = {
    "overloaded_error": 529, "rate_limit_error": 429, "rate_limit_exceeded": 429, "api_error": 500, "server_error": 500, "timeout_error": 504,
    "authentication_error": 401, "permission_error": 403, "not_found_error": 404, "invalid_request_error": 400, "request_too_large": 413,
    "resource_exhausted": 429, "unavailable": 503, "internal": 500, "invalid_argument": 400,
}  # fmt: skip
_STALL = frozenset({"ReadTimeout", "WriteTimeout", "APITimeoutError", "ServerTimeoutError", "SocketTimeoutError", "TimeoutError", "TimeoutException"})
_NO_CONNECTION = frozenset({"ConnectTimeout", "PoolTimeout", "ConnectionTimeoutError"})
_CUT = frozenset({"RemoteProtocolError", "IncompleteReadError", "ClientPayloadError"})
_RESET = frozenset({"NetworkError", "ReadError", "WriteError", "ConnectError", "CloseError", "ProtocolError",
                    "ClientConnectionError", "APIConnectionError", "ConnectionError", "OSError"})  # fmt: skip
_MALFORMED = frozenset({"JSONDecodeError", "UnknownApiResponseError", "APIResponseValidationError", "DecodingError", "UnicodeDecodeError"})


def failure_of(error: BaseException, *, started: bool = False) -> ProviderFailure | None:
    """``started``: part of the answer had come. None: nothing that a provider or the network does, so a bug of ours."""
    if isinstance(error, ProviderFailure):
        return error
    chain = list(_chain(error))
    # Agno says 502 for whatever it cannot tell: its own errors count only where they have no cause.
    for link in sorted(chain, key=lambda e: "AgnoError" in _names(e)):
        failure = _from_status(link)
        if failure is not None:
            return failure
    return _from_classes(chain, started)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _from_status(error: BaseException) -> ProviderFailure | None:
    response: Any = getattr(error, "response", None)
    status: Any = getattr(error, "status_code", None) or getattr(error, "code", None) or getattr(response, "status_code", None)
    body = _body(error)
    if "ContextWindowExceededError" in _names(error):
        return ProviderFailure("context", str(error), status=status)
    if isinstance(status, int) and status >= 400 and not ("ModelProviderError" in _names(error) and error.__cause__):
        return from_body(body, status=status, headers=getattr(response, "headers", None), fallback=str(error))
    # A stream that began with 200 and then reported an error.
    if body.get("message") and ("APIError" in _names(error) or "APIStatusError" in _names(error)):
        return from_body(body, fallback=str(error))
    return None


def _names(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}


def _body(error: BaseException) -> dict[str, Any]:
    for name in ("body", "details"):
        value: Any = getattr(error, name, None)
        for _ in range(2):
            if isinstance(value, list) and value:
                value = cast("list[Any]", value)[0]
            if isinstance(obj(value).get("error"), (dict, str)):
                inner = obj(value)["error"]
                value = {"message": inner} if isinstance(inner, str) else inner
        if obj(value):
            return obj(value)
    return {}


def from_body(
    body: Mapping[str, Any], *, status: int | None = None, headers: Mapping[str, str] | None = None, fallback: str = ""
) -> ProviderFailure:
    """The failure that an error body (the part below ``error``) describes."""
    message = str(body.get("message") or fallback or "no message")
    kinds = [str(body.get(k) or "").lower() for k in ("code", "type", "status")]
    if status is None:
        code: Any = body.get("code")
        status = code if isinstance(code, int) and code >= 400 else next((_BY_TYPE[k] for k in kinds if k in _BY_TYPE), 500)
    if "context_length_exceeded" in kinds or (status in (400, 413, 422) and _CONTEXT.search(message)) or status == 413:
        return ProviderFailure("context", message, status=status)
    if status == 429 and _SPENT.intersection(kinds):
        return ProviderFailure("http", f"{message} (no quota is left: waiting will not help)", status=402)
    return ProviderFailure("http", message, status=status, retry_after_s=retry_after_s(headers, body))


def retry_after_s(headers: Mapping[str, str] | None, body: Mapping[str, Any] | None = None) -> float | None:
    """Seconds to wait: ``retry-after-ms``, ``retry-after`` as seconds or as an HTTP date, Google's ``RetryInfo``."""
    headers = headers or {}
    try:
        if headers.get("retry-after-ms"):
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        text = headers.get("retry-after")
        if text:
            return max(0.0, float(text)) if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else _until(text, headers.get("date"))
    except (ValueError, TypeError, OverflowError):
        return None
    for detail in objs((body or {}).get("details")):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)s", str(detail.get("retryDelay", "")))
        if match:
            return float(match[1])
    return None


def _until(text: str, date: str | None) -> float:
    """By the server's own clock when it says it: ours may be wrong."""
    now = parsedate_to_datetime(date).timestamp() if date else time.time()
    return max(0.0, parsedate_to_datetime(text).timestamp() - now)


def _from_classes(chain: list[BaseException], started: bool) -> ProviderFailure | None:
    """By the most telling class of the chain: SDKs wrap a cut stream and a lost connection in the same class."""
    names = set[str]().union(*(_names(e) for e in chain))
    text = next((str(e) for e in chain if str(e)), type(chain[0]).__name__)
    if names & _MALFORMED:
        return ProviderFailure("truncated", f"the answer is not what the provider's interface says ({text[:120]})")
    if names & _CUT:
        cut = started or any("incomplete" in str(e).lower() for e in chain)
        return ProviderFailure("truncated" if cut else "reset", text)
    if names & _NO_CONNECTION:
        return ProviderFailure("reset", f"no connection: {text}")
    if names & _STALL:
        return ProviderFailure("stall", "no byte came in time")
    if names & _RESET:
        return ProviderFailure("reset", text)
    return None
