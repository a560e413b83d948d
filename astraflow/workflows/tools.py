"""Tool calls: how a model's text says them, and how messages carry them.

What was sampled stays what it is; a parsed call is only a reading of it. A call that cannot be read (broken JSON, no
name) is no call: the text keeps it, so the workflow or the harness sees what the model wrote.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.component import find

Message = Mapping[str, Any]
Parsed = tuple[str, list[tuple[str, dict[str, Any]]]]
Parser = Callable[[str], Parsed]
"""``text -> (what is left of it, [(tool, arguments), …])``."""

_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model asked for; ``id`` is what the tool's message names."""

    id: str
    name: str
    arguments: dict[str, Any]

    def message_part(self) -> dict[str, Any]:
        """As an entry of an assistant message's ``tool_calls``; templates take the arguments as an object."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def hermes(text: str) -> Parsed:
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``: Hermes, Qwen and many others."""
    calls: list[tuple[str, dict[str, Any]]] = []
    rest: list[str] = []
    end = 0
    for found in _HERMES.finditer(text):
        call = _call(found[1], "arguments")
        if call is not None:
            calls.append(call)
            rest.append(text[end : found.start()])
            end = found.end()
    return ("".join([*rest, text[end:]]).strip() if calls else text), calls


def llama(text: str) -> Parsed:
    """The whole answer is ``{"name": …, "parameters": {…}}``: Llama 3."""
    call = _call(text.strip().removeprefix(_PYTHON_TAG), "parameters")
    return (text, []) if call is None else ("", [call])


def no_tools(text: str) -> Parsed:
    """Nothing is a call."""
    return text, []


PARSERS: dict[str, Parser] = {"hermes": hermes, "llama": llama, "none": no_tools}


def load_parser(name: str, *, where: str) -> Parser:
    """The parser that a config names. Raises ``ConfigError``."""
    parser: Parser = find(name, PARSERS, where=where)
    return parser


def _call(text: str, arguments: str) -> tuple[str, dict[str, Any]] | None:
    try:
        said: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return None
    given = said.get(arguments, {})
    return (said["name"], given) if isinstance(given, dict) else None


def tool(content: str, call: ToolCall) -> Message:
    """What a tool answered to ``call``."""
    return {"role": "tool", "content": content, "name": call.name, "tool_call_id": call.id}


def plain(message: Message) -> dict[str, Any]:
    """A message in the one form in which messages are compared and rendered.

    Clients write the same thing in several ways: no content as null, text as a list of parts, arguments as a string
    of JSON. Keys that say nothing are left out.
    """
    made = {key: value for key, value in message.items() if value not in (None, [], {})}
    made["content"] = _text(message.get("content"))
    if "tool_calls" in made:
        made["tool_calls"] = [_plain_call(call) for call in made["tool_calls"]]
    return made


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function", {})
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    return ToolCall(str(call.get("id", "")), str(function.get("name", "")), arguments).message_part()


def tool_names(messages: Sequence[Message], known: Sequence[Message]) -> str:
    """Which tools spoke in ``messages``, by their name or by the call of ``known`` that they answer."""
    calls = {call["id"]: call["function"]["name"] for message in known for call in message.get("tool_calls", [])}
    spoke = [m.get("name") or calls.get(m.get("tool_call_id", ""), "") for m in messages if m["role"] == "tool"]
    return ",".join(dict.fromkeys(name for name in spoke if name))
