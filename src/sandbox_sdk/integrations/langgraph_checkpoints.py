"""LangGraph: every checkpoint of a graph has the files of its sandbox.

    from langgraph.checkpoint.memory import InMemorySaver
    from sandbox_sdk.integrations.langgraph_checkpoints import SandboxCheckpointSaver

    saver = SandboxCheckpointSaver(InMemorySaver())
    agent = create_agent(model, middleware=[SandboxMiddleware()], checkpointer=saver)
    *_, first = agent.get_state_history(config)
    agent.invoke(None, first.config)  # with the files of that moment

It wraps the saver that a graph has. Our tools and deepagents' backend do the rest: after a step in
which they ran, a checkpoint of the sandbox is taken, and the graph's checkpoint names it in its
metadata, as `sandbox_checkpoint`; the others name that of the one before them. Before a tool runs,
the sandbox gets the files of the graph's checkpoint it runs at, if it has others.

Needs `pip install agent-sandbox[langchain]`.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Any, Self, cast

from sandbox_sdk.background import background
from sandbox_sdk.extras import needs
from sandbox_sdk.integrations.graph_files import (
    Files,
    FilesUnavailable,
    GraphCheckpoint,
    GraphFiles,
)
from sandbox_sdk.integrations.tools import AsyncSandboxTools, SandboxTools

with needs("langchain"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
    )
    from langgraph.config import get_config

__all__ = ["FilesUnavailable", "SandboxCheckpointSaver", "follow_graph"]

# What LangGraph has in the config of a task. It exports no names for these.
_CHECKPOINTER = "__pregel_checkpointer"
_DURABILITY = "__pregel_durability"
_REPLAY = "__pregel_replay_state"
_TASK = "__pregel_task_id"

_Writes = Sequence[tuple[str, Any]]


class SandboxCheckpointSaver(BaseCheckpointSaver[Any]):
    """A saver whose checkpoints have the files of the sandbox, too.

    saver: what the graph's own checkpoints are kept with, such as InMemorySaver, SqliteSaver,
        AsyncSqliteSaver. Who opened it closes it.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._background = background()
        self.files = GraphFiles()

    def __repr__(self) -> str:
        return f"<SandboxCheckpointSaver {type(self._saver).__name__}, {self.files!r}>"

    # What has to do with files

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._loaded(config, self._saver.get_tuple(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._loaded(config, await self._saver.aget_tuple(config))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread_id, made = _about(config, checkpoint, metadata)
        if made is not None:
            if made.parent and not self.files.knows(thread_id, made.parent):
                self.get_tuple(config)
            files = self._background.run(lambda: self.files.keep(thread_id, made))
            metadata = _with_files(metadata, files)
        return self._saver.put(config, checkpoint, metadata, new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread_id, made = _about(config, checkpoint, metadata)
        if made is not None:
            if made.parent and not self.files.knows(thread_id, made.parent):
                await self.aget_tuple(config)
            files = await self._background.cross(lambda: self.files.keep(thread_id, made))
            metadata = _with_files(metadata, files)
        return await self._saver.aput(config, checkpoint, metadata, new_versions)

    def _loaded(
        self, config: RunnableConfig, found: CheckpointTuple | None
    ) -> CheckpointTuple | None:
        asked = config["configurable"]
        thread_id = str(asked["thread_id"])
        if not asked.get("checkpoint_ns"):
            self.files.began(thread_id)
        elif found and asked.get("checkpoint_id") and _TASK in asked:  # A run, not a look at it.
            self.files.entered_subgraph(thread_id, asked.get("checkpoint_map", {}).get("", ""))
        if found is not None:
            under, _ = _under(thread_id, found)
            _, loaded = _about(under, found.checkpoint, found.metadata)
            if loaded is not None:
                self.files.remember(thread_id, loaded)
        return found

    # The rest is as the other saver has it

    @property
    def config_specs(self) -> list[Any]:
        return self._saver.config_specs

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        clone = copy.copy(self)
        clone._saver = self._saver.with_allowlist(extra_allowlist)
        clone.serde = clone._saver.serde
        return clone

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return self._saver.list(config, filter=filter, before=before, limit=limit)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        return self._saver.alist(config, filter=filter, before=before, limit=limit)

    def put_writes(
        self, config: RunnableConfig, writes: _Writes, task_id: str, task_path: str = ""
    ) -> None:
        self._saver.put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: _Writes, task_id: str, task_path: str = ""
    ) -> None:
        await self._saver.aput_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        self._saver.delete_thread(thread_id)
        self.files.forget(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        await self._saver.adelete_thread(thread_id)
        self.files.forget(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._saver.delete_for_runs(run_ids)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._saver.adelete_for_runs(run_ids)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._saver.prune(thread_ids, strategy=strategy)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._saver.aprune(thread_ids, strategy=strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._saver.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._saver.aget_delta_channel_history(config=config, channels=channels)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Fork a thread of the graph. The sandbox of the new one begins with the files of the
        checkpoint at which its first tool runs."""
        try:
            self._saver.copy_thread(source_thread_id, target_thread_id)
        except NotImplementedError:
            everything = self._saver.list({"configurable": {"thread_id": source_thread_id}})
            for found in reversed([*everything]):
                under, versions = _under(target_thread_id, found)
                at = self._saver.put(under, found.checkpoint, found.metadata, versions)
                for task_id, writes in _writes(found).items():
                    self._saver.put_writes(at, writes, task_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        try:
            await self._saver.acopy_thread(source_thread_id, target_thread_id)
        except NotImplementedError:
            source: RunnableConfig = {"configurable": {"thread_id": source_thread_id}}
            for found in reversed([each async for each in self._saver.alist(source)]):
                under, versions = _under(target_thread_id, found)
                at = await self._saver.aput(under, found.checkpoint, found.metadata, versions)
                for task_id, writes in _writes(found).items():
                    await self._saver.aput_writes(at, writes, task_id)


def follow_graph(tools: SandboxTools) -> None:
    """Have sandboxes follow the graph that uses them, where its saver is a SandboxCheckpointSaver.
    Our tools for LangChain and deepagents do so by themselves."""
    tools.before_use(_prepare)


async def _prepare(tools: AsyncSandboxTools, thread_id: str, *, changes: bool) -> None:
    try:
        task = get_config().get("configurable", {})
    except RuntimeError:  # Not called by a graph.
        return
    saver = task.get(_CHECKPOINTER)
    if not isinstance(saver, SandboxCheckpointSaver) or not saver.files.has(thread_id):
        return
    if str(task["thread_id"]) != thread_id:  # A sandbox that may serve several graphs.
        return
    at = task["checkpoint_map"][""]
    if task.get(_DURABILITY) == "exit":  # The step is saved at the end of the run, if at all.
        if task.get(_REPLAY):
            reason = 'a run with durability="exit" cannot go back: use "sync" or "async"'
            raise FilesUnavailable(thread_id, at, reason)
        at = saver.files.newest(thread_id)
    await saver.files.prepare(tools, thread_id, at, changes=changes)


def _about(
    config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
) -> tuple[str, GraphCheckpoint | None]:
    """The thread, and the checkpoint made at this config; None for one of a subgraph, whose steps
    are within one of the graph around it."""
    at = config["configurable"]
    thread_id = str(at["thread_id"])
    if at.get("checkpoint_ns"):
        return thread_id, None
    files = Files.of(cast(dict[str, Any], metadata))
    source, versions = metadata.get("source"), checkpoint["channel_versions"]
    return thread_id, GraphCheckpoint(
        checkpoint["id"], at.get("checkpoint_id"), source, versions, files
    )


def _with_files(metadata: CheckpointMetadata, files: Files) -> CheckpointMetadata:
    return cast(CheckpointMetadata, {**metadata, **files.metadata()})


def _under(thread_id: str, found: CheckpointTuple) -> tuple[RunnableConfig, ChannelVersions]:
    """Where a copy of a checkpoint belongs, and what is new in it: everything."""
    at = {
        "thread_id": thread_id,
        "checkpoint_ns": found.config["configurable"].get("checkpoint_ns", ""),
    }
    if found.parent_config is not None:
        at["checkpoint_id"] = found.parent_config["configurable"]["checkpoint_id"]
    return {"configurable": at}, found.checkpoint["channel_versions"]


def _writes(found: CheckpointTuple) -> dict[str, list[tuple[str, Any]]]:
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for task_id, channel, value in found.pending_writes or ():
        by_task.setdefault(task_id, []).append((channel, value))
    return by_task
