"""Google generateContent."""

from __future__ import annotations

import json
import re
from typing import Any

from capataz.agents.model_client import ProviderFailure
from capataz.agents.providers.conversation import arguments_of, merged, repaired, tool_name
from capataz.agents.providers.draft import Draft, DraftCall
from capataz.agents.providers.loose import count, obj, objs, text

_FINISH = {"STOP": "stop", "MAX_TOKENS": "length"}
_MALFORMED = re.compile(r"call: (?:print\()?(?:default_api\.)?(\w+)\((.*)", re.DOTALL)


def request(*, model: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], max_output_tokens: int) -> dict[str, Any]:
    """Keyword arguments of the SDK's ``generate_content_stream``."""
    clean = repaired(messages)
    system = "\n\n".join(m["content"] for m in clean if m["role"] == "system" and m["content"])
    turns = merged(_turn(m) for m in clean if m["role"] != "system")
    config: dict[str, Any] = {"max_output_tokens": max_output_tokens, "automatic_function_calling": {"disable": True}}
    if system:
        config["system_instruction"] = system
    if tools:
        config["tools"] = [{"function_declarations": [_tool(t["function"]) for t in tools]}]
    contents = [{"role": t["role"], "parts": t["content"]} for t in turns] or [{"role": "user", "parts": [{"text": " "}]}]
    return {"model": model, "contents": contents, "config": config}


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    declared = {"name": function["name"], "description": function.get("description", "")}
    schema = obj(function.get("parameters"))
    return {**declared, "parameters_json_schema": schema} if schema.get("properties") else declared


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        answer = {"name": message["tool_name"], "response": {"result": message["content"]}}
        return {"role": "user", "content": [{"function_response": answer}]}
    if message["role"] != "assistant":
        return {"role": "user", "content": [{"text": message["content"] or " "}]}
    parts: list[dict[str, Any]] = [{"text": message["content"]}] if message["content"] else []
    signatures: dict[str, str] = message.get("google_signatures") or {}
    for place, call in enumerate(objs(message.get("tool_calls"))):
        part: dict[str, Any] = {"function_call": {"name": tool_name(call), "args": arguments_of(call)}}
        if signatures.get(str(place)):
            part["thought_signature"] = signatures[str(place)]
        parts.append(part)
    return {"role": "model", "content": parts or [{"text": " "}]}


class ContentsReader:
    """Reads the REST form (camel case)."""

    def __init__(self) -> None:
        self.draft = Draft()

    def feed(self, event: dict[str, Any]) -> None:
        if event.get("error"):
            from capataz.agents.providers.failures import from_body

            raise from_body(obj(event["error"]))
        if event.get("usageMetadata"):
            self._usage(obj(event["usageMetadata"]))
        blocked = obj(event.get("promptFeedback")).get("blockReason")
        if blocked:
            self.draft.finish = f"blocked:{str(blocked).lower()}"
        for candidate in objs(event.get("candidates"))[:1]:
            for part in objs(obj(candidate.get("content")).get("parts")):
                self._part(part)
            if candidate.get("finishReason"):
                self._finish(str(candidate["finishReason"]), candidate)

    def feed_whole(self, body: dict[str, Any]) -> None:
        self.feed(body)

    def _usage(self, usage: dict[str, Any]) -> None:
        self.draft.input_tokens = count(usage.get("promptTokenCount")) + count(usage.get("toolUsePromptTokenCount"))
        self.draft.output_tokens = count(usage.get("candidatesTokenCount")) + count(usage.get("thoughtsTokenCount"))
        self.draft.cached_tokens = count(usage.get("cachedContentTokenCount"))

    def _part(self, part: dict[str, Any]) -> None:
        call = obj(part.get("functionCall"))
        if call:
            place = len(self.draft.calls)
            arguments = json.dumps(obj(call.get("args")), ensure_ascii=False)
            self.draft.calls.append(DraftCall(id=text(call.get("id")) or f"call_{place}", name=text(call.get("name")), arguments=[arguments]))
            if part.get("thoughtSignature"):
                self.draft.extra.setdefault("google_signatures", {})[str(place)] = part["thoughtSignature"]
        elif not part.get("thought"):
            self.draft.text.append(text(part.get("text")))

    def _finish(self, reason: str, candidate: dict[str, Any]) -> None:
        if reason == "MALFORMED_FUNCTION_CALL":
            self._malformed(str(candidate.get("finishMessage") or ""))
        elif reason == "STOP" and self.draft.calls:
            self.draft.finish = "tool_calls"
        else:
            self.draft.finish = _FINISH.get(reason, reason.lower())

    def _malformed(self, said: str) -> None:
        """Google parses the model's call itself and only reports what it could not read: it becomes a call with bad
        arguments, so that the harness answers the model as for every other provider. Where the report is missing (the
        SDK drops it) nothing is left to answer, and the model is asked again.
        """
        match = _MALFORMED.search(said)
        if match:
            self.draft.calls.append(DraftCall(id=f"call_{len(self.draft.calls)}", name=match[1], arguments=[match[2] or "("]))
            self.draft.finish = "tool_calls"
        else:
            raise ProviderFailure("truncated", "the provider could not read the model's tool call (MALFORMED_FUNCTION_CALL)")
