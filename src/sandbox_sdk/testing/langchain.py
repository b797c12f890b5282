"""A model for LangChain that plays a script, for tests and examples without a real one.

Needs `pip install agent-sandbox[langchain]`.
"""

from __future__ import annotations

from typing import Any

from sandbox_sdk.extras import needs

with needs("langchain"):
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
    from langchain_core.outputs import ChatGeneration, ChatResult


class ScriptedModel(BaseChatModel):
    """Says what its script says: in each turn, its calls one after the other, and then "done"."""

    turns: list[list[dict[str, Any]]]
    """For every turn the calls to make, as {"name": …, "args": …}."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> ScriptedModel:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        turn = sum(isinstance(message, HumanMessage) for message in messages) - 1
        asked = max(n for n, message in enumerate(messages) if isinstance(message, HumanMessage))
        step = sum(isinstance(message, AIMessage) for message in messages[asked:])
        answer = AIMessage("done")
        if step < len(self.turns[turn]):
            call = {**self.turns[turn][step], "id": f"call_{turn}_{step}", "type": "tool_call"}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])
