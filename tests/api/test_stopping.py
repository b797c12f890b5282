"""A server that stops while somebody still waits."""

import asyncio
import json

from starlette.types import Message, Receive, Scope, Send

from sandbox_server.api.middleware import RequestLog

SCOPE = {"type": "http", "method": "POST", "path": "/execute", "headers": []}


async def cut_off(*, after_the_start: bool) -> list[Message]:
    """What a caller gets whose request is cancelled."""
    sent: list[Message] = []
    waiting = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if after_the_start:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        waiting.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    answering = asyncio.create_task(RequestLog(app)(dict(SCOPE), receive, send))
    await waiting.wait()
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    assert answering.cancelled() == after_the_start
    return sent


async def test_a_caller_is_told_to_try_again() -> None:
    start, body = await cut_off(after_the_start=False)
    assert start["status"] == 503
    assert json.loads(body["body"])["error"]["code"] == "runtime_unavailable"


async def test_an_answer_that_has_begun_is_not_finished() -> None:
    (start,) = await cut_off(after_the_start=True)
    assert start["status"] == 200
