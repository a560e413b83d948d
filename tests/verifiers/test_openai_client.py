"""OpenAI's own client against a pool's server. Runs where it is installed: ``make test-verifiers``."""

from __future__ import annotations

import openai
import pytest

from astraflow.workflows import user
from tests.raas.test_gateway import serving
from tests.workflows.conftest import CHATML, Stage
from tests.workflows.test_tools import CALL, TOOL_TEMPLATE, TOOLS

pytestmark = pytest.mark.anyio


async def test_it_talks_streams_and_calls_tools() -> None:
    play = Stage(TOOL_TEMPLATE).role("solver", CALL, "three", "four")
    async with serving(play) as s, s.roles.served() as door:
        client = openai.AsyncOpenAI(base_url=door.url, api_key=door.key, max_retries=0)
        assert [model.id async for model in client.models.list()] == ["solver"]
        messages: list[object] = [user("1+2")]
        first = await client.chat.completions.create(model="solver", messages=messages, tools=TOOLS, logprobs=True)
        message = first.choices[0].message
        [call] = message.tool_calls
        assert (first.choices[0].finish_reason, message.content) == ("tool_calls", "let me")
        assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
        assert len(first.choices[0].logprobs.content) == first.usage.completion_tokens
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        second = await client.chat.completions.create(model="solver", messages=messages, tools=TOOLS)
        messages += [second.choices[0].message, user("again")]
        stream = await client.chat.completions.create(model="solver", messages=messages, tools=TOOLS, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "four"
        assert chunks[-1].choices[0].finish_reason == "stop"
        s.roles.give(1)
        await client.close()
    [row] = s.roles.trajectories()  # one conversation: the client's own form of the messages changed nothing
    assert [t.role for t in row.turns] == ["assistant", "tool", "assistant", "user", "assistant"]


async def test_its_errors_are_the_right_ones() -> None:
    async with serving(Stage(CHATML).role("solver", "1"), max_requests=1) as s, s.roles.served() as door:
        client = openai.AsyncOpenAI(base_url=door.url, api_key=door.key, max_retries=0)
        messages = [user("hi")]
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
            await client.chat.completions.create(model="gpt", messages=messages)
        with pytest.raises(openai.BadRequestError, match="presence_penalty is not supported"):
            await client.chat.completions.create(model="solver", messages=messages, presence_penalty=1)
        s.gateway._in_flight = 1
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="solver", messages=messages)
        s.gateway._in_flight = 0
        stranger = openai.AsyncOpenAI(base_url=door.url, api_key="x", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="no open episode"):
            await stranger.chat.completions.create(model="solver", messages=messages)
        await client.close()
        await stranger.close()
