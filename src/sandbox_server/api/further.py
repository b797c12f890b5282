"""Routes beyond the eight: commands in the background, and the list of sessions."""

from __future__ import annotations

from fastapi import APIRouter

from sandbox_sdk.protocol import errors
from sandbox_server.api import background, examples, sessions
from sandbox_server.api.docs import COMMANDS_TAG, SESSIONS_TAG, answer, error_answers
from sandbox_server.api.routes import ALWAYS, OF_SESSION, WITH_BODY, keyed_router

OF_COMMAND = (*OF_SESSION, errors.NotFound)


def further() -> APIRouter:
    """A new router with all of them."""
    router = keyed_router()
    _command(router)
    _commands(router)
    _signal(router)
    _stdin(router)
    _sessions(router)
    return router


def _command(router: APIRouter) -> None:
    router.add_api_route(
        "/command",
        background.command,
        methods=["GET"],
        tags=[COMMANDS_TAG],
        summary="See how a command stands",
        operation_id="command",
        responses={
            200: answer("The command.", examples.EXECUTE_RESULT),
            **error_answers(*ALWAYS, *OF_COMMAND),
        },
    )


def _commands(router: APIRouter) -> None:
    router.add_api_route(
        "/commands",
        background.commands,
        methods=["GET"],
        tags=[COMMANDS_TAG],
        summary="See which commands a session knows",
        operation_id="commands",
        responses={
            200: answer("The commands.", examples.COMMAND_LIST),
            **error_answers(*ALWAYS, *OF_SESSION),
        },
    )


def _signal(router: APIRouter) -> None:
    router.add_api_route(
        "/command/signal",
        background.signal,
        methods=["POST"],
        tags=[COMMANDS_TAG],
        summary="Send a signal to a command",
        operation_id="signal",
        responses={
            200: answer("Sent; how the command stands.", examples.COMMAND_INFO),
            **error_answers(*ALWAYS, *WITH_BODY, *OF_COMMAND),
        },
    )


def _stdin(router: APIRouter) -> None:
    router.add_api_route(
        "/command/stdin",
        background.stdin,
        methods=["POST"],
        tags=[COMMANDS_TAG],
        summary="Send input to a command",
        operation_id="stdin",
        responses={
            200: answer("Received.", examples.STDIN_RECEIPT),
            **error_answers(*ALWAYS, *WITH_BODY, *OF_COMMAND, errors.StdinClosed, errors.Capacity),
        },
    )


def _sessions(router: APIRouter) -> None:
    router.add_api_route(
        "/sessions",
        sessions.sessions,
        methods=["GET"],
        tags=[SESSIONS_TAG],
        summary="See which sessions there are",
        operation_id="sessions",
        responses={
            200: answer("The sessions.", examples.SESSION_LIST),
            **error_answers(*(set(ALWAYS) - {errors.InvalidRequest, errors.InvalidThreadId})),
        },
    )
