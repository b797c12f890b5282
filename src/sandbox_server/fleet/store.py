"""Access to a fleet's Redis: connection, key names, error translation."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple, Self, cast
from urllib.parse import SplitResult, unquote, urlsplit

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import NoScriptError, RedisError

from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_server.metrics.recorder import NO_METRICS, Metrics

_ANSWER_S = 2.0
_RETRIES = 3
_PINGED = 4
"""What part of an outage the nodes of a cluster have to answer: leases are renewed meanwhile."""
_PIECE = 500
"""Fields per HSCAN of a large hash."""
_NAMES = (
    "acquire", "begin", "describe", "end", "limit", "release", "renew", "restore", "uptime",
)  # fmt: skip
_SCRIPTS = {
    name: (resources.files(__package__) / "lua" / f"{name}.lua").read_text() for name in _NAMES
}
DIGESTS = {
    name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    for name, text in _SCRIPTS.items()
}
"""By which EVALSHA finds a loaded script."""


class Uptime(NamedTuple):
    """For how long workers have been able to renew their leases."""

    run_id: str
    """Changes when Redis restarts or fails over."""
    up_s: float
    """Since the last outage; 0 during one."""
    most_s: float
    """The longest such time since Redis may last have lost data."""


class Restored(NamedTuple):
    """A live session with its keys."""

    thread_key: str
    session_key: str
    session_id: str
    record: str


class Store:
    """Every method raises RuntimeUnavailable if Redis does not answer."""

    def __init__(
        self,
        client: Redis,
        *,
        sentinels: Sequence[Redis] = (),
        namespace: str = "sandbox",
        metrics: Metrics = NO_METRICS,
    ) -> None:
        """`sentinels`: clients of the sentinels, closed together with `client`."""
        self._metrics = metrics
        self._client = client
        self._sentinels = sentinels
        self._namespace = namespace

    @classmethod
    def open(cls, url: str, *, namespace: str = "sandbox", metrics: Metrics = NO_METRICS) -> Store:
        """`redis://`, `rediss://`, `unix://`, `redis+sentinel://host:port,host:port/service/db` and
        `redis+cluster://host:port`. Raises InvalidRequest for anything else."""
        try:
            client, *sentinels = _clients(url)
        except (ValueError, RedisError):
            # Without its message, which may contain a part of the password.
            raise InvalidRequest(
                "SANDBOX_REDIS_URL is not a URL of Redis: write redis://:password@host:6379/0, or"
                " begin with rediss://, unix://, redis+sentinel:// or redis+cluster://; special"
                " characters of a password are written as %23"
            ) from None
        return cls(client, sentinels=sentinels, namespace=namespace, metrics=metrics)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        for client in (self._client, *self._sentinels):
            await client.aclose()

    # Braces put related keys into one slot of a cluster. Names given by callers are hashed: they
    # may contain secrets.

    def thread_key(self, tenant: str, thread_id: str) -> str:
        return f"{self._namespace}:{{{_hashed(tenant, thread_id)}}}:thread"

    def session_key(self, tenant: str, session_id: str) -> str:
        return f"{self._namespace}:{{{_hashed(tenant, session_id)}}}:session"

    def asked_key(self, tenant: str, session_id: str) -> str:
        """What a session was asked for. Not in its record, which an earlier version has to read."""
        return f"{self._namespace}:{{{_hashed(tenant, session_id)}}}:asked"

    def previews_key(self, session_id: str) -> str:
        """By the session alone: all that the URL of a preview tells."""
        return f"{self._namespace}:{{{_hashed(session_id)}}}:previews"

    def worker_key(self, worker: str) -> str:
        return f"{self._namespace}:{{{_hashed(worker)}}}:worker"

    def held_key(self, worker: str) -> str:
        return f"{self._namespace}:{{{_hashed(worker)}}}:sessions"

    def history_key(self, tenant: str, session_id: str) -> str:
        return f"{self._namespace}:{{{_hashed(tenant, session_id)}}}:history"

    def histories_key(self, tenant: str) -> str:
        """Sorted set of a tenant's session ids by the time of their beginning."""
        return f"{self._namespace}:{{{_hashed(tenant)}}}:histories"

    def usage_key(self, tenant: str, what: str) -> str:
        """what: a day, and whether of its sessions."""
        return f"{self._namespace}:{{{_hashed(tenant)}}}:usage:{what}"

    @property
    def keys_key(self) -> str:
        """Hash of the API keys by their ids. Beside it, `:version` counts their changes."""
        return f"{self._namespace}:{{keys}}:api"

    @property
    def workers_key(self) -> str:
        """Sorted set of worker ids by the time of their last heartbeat."""
        return f"{self._namespace}:workers"

    @property
    def marker_key(self) -> str:
        """The run of Redis, and since when it has had what it has."""
        return f"{self._namespace}:marker"

    @property
    def uptime_key(self) -> str:
        return f"{{{self.marker_key}}}:uptime"

    async def get(self, key: str) -> str | None:
        found = await self._ask("GET", key)
        return None if found is None else str(found)

    async def get_kept(self, key: str, *, ttl_s: float) -> str | None:
        """The value of a key, which is kept for another ttl_s."""
        found, _ = await self._ask_all(("GET", key), ("PEXPIRE", key, _ms(ttl_s)))
        return None if found is None else str(found)

    async def set(self, key: str, value: str, *, ttl_s: float | None) -> None:
        """Without a ttl the key does not expire."""
        await self._ask("SET", key, value, *(() if ttl_s is None else ("PX", _ms(ttl_s))))

    async def delete(self, key: str) -> None:
        await self._ask("DEL", key)

    async def expire(self, key: str, *, ttl_s: float) -> None:
        await self._ask("PEXPIRE", key, _ms(ttl_s))

    async def pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers to several commands; it is not a transaction."""
        return await self._ask_all(*commands) if commands else []

    async def range_by_rank(self, key: str, most: int) -> list[str]:
        """The highest members of a sorted set, highest first."""
        return list(await self._ask("ZREVRANGE", key, 0, most - 1))

    async def fields(self, key: str) -> dict[str, str]:
        return dict(await self._ask("HGETALL", key))

    async def many_fields(self, key: str) -> dict[str, str]:
        """Like fields(), in pieces: the hash may be too large for one answer."""
        found: dict[str, str] = {}
        cursor = 0
        while True:
            cursor, piece = await self._ask("HSCAN", key, cursor, "COUNT", _PIECE)
            found |= piece
            if not int(cursor):
                return found

    async def set_field(self, key: str, field: str, value: str) -> None:
        await self._ask("HSET", key, field, value)

    async def drop_field(self, key: str, field: str) -> None:
        await self._ask("HDEL", key, field)

    async def ask_to_drain(self, worker: str, how: str) -> bool:
        """False if there is no such worker."""
        key = self.worker_key(worker)
        if not await self._ask("EXISTS", key):
            return False
        await self._ask("HSET", key, "drain", how)
        return True

    async def now_ms(self) -> int:
        """The time of Redis, the only clock that all machines share."""
        seconds, micros = await self._ask("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def begin(self, key: str, record: str, *, after: tuple[str, int, str]) -> bool:
        """`after`: session, epoch and status of the record expected under the key."""
        return bool(await self._run("begin", (key,), record, *after))

    async def restore(self, held_key: str, sessions: Sequence[Restored]) -> list[bool]:
        """Rewrite a worker's live sessions in one script; returns for each whether it still owns
        its thread."""
        if isinstance(self._client, RedisCluster):
            return await self._restore_in_cluster(held_key, sessions)
        threads = (each.thread_key for each in sessions)
        keys = (*threads, *(each.session_key for each in sessions), held_key)
        answers = await self._run("restore", keys, *(each.record for each in sessions))
        return [bool(answer) for answer in answers]

    async def _restore_in_cluster(self, held_key: str, sessions: Sequence[Restored]) -> list[bool]:
        """One script per thread, since their keys are on different nodes. `held` is written first,
        so that no record is orphaned."""
        await self._ask("HSET", held_key, *flat({s.session_id: s.record for s in sessions}))
        # EVAL, not EVALSHA: a pipeline cannot fall back when a node lacks the script.
        script = _SCRIPTS["restore"]
        answers = await self._ask_all(
            *(("EVAL", script, 1, each.thread_key, each.record) for each in sessions)
        )
        ours = [bool(answer) for (answer,) in answers]
        known = [each for each, is_ours in zip(sessions, ours, strict=True) if is_ours]
        await self.pipeline([("SET", each.session_key, each.record) for each in known])
        return ours

    async def end(self, key: str, record: str, *, ttl_s: float) -> str:
        """Returns the record that counts for the session: this one, that of an earlier end, or that
        of a worker that has taken it over."""
        return str(await self._run("end", (key,), record, _ms(ttl_s)))

    async def acquire(
        self, key: str, home: str, *, ttl_s: float, keep_s: float, fields: dict[str, Any]
    ) -> tuple[int, float]:
        """The epoch of the acquired lease, or 0 and the seconds another still holds it."""
        answer = await self._run("acquire", (key,), home, _ms(ttl_s), _ms(keep_s), *flat(fields))
        return int(answer[0]), int(answer[1]) / 1000

    async def renew(
        self, worker: str, epoch: int, *, ttl_s: float, keep_s: float, fields: dict[str, Any]
    ) -> tuple[bool, str]:
        """Whether the lease is still held, and the requested drain mode, if any."""
        keys = (self.worker_key(worker), self.held_key(worker))
        values = (epoch, _ms(ttl_s), _ms(keep_s), *flat(fields))
        held, drain, now_ms = await self._run("renew", keys, *values)
        if held:
            await self.note_worker(worker, now_ms=int(now_ms))
        return bool(held), str(drain)

    async def release(self, key: str, epoch: int, state: str) -> None:
        await self._run("release", (key,), epoch, state)

    async def describe(self, key: str) -> tuple[dict[str, str], int]:
        """The fields of a worker, and the time of Redis in ms."""
        now_ms, *flat = await self._run("describe", (key,))
        return dict(zip(flat[::2], flat[1::2], strict=True)), int(now_ms)

    async def describe_all(self, keys: Sequence[str]) -> tuple[list[dict[str, str]], int]:
        """The same for many workers, in one pipeline."""
        now_ms = await self.now_ms()
        return await self._ask_all(*(("HGETALL", key) for key in keys)), now_ms

    async def uptime(self, *, outage_s: float, keep_s: float, renewed: bool = False) -> Uptime:
        """outage_s: without a heartbeat of any worker for so long, Redis counts as away. renewed:
        the caller is a worker that has just renewed its lease."""
        keys = [self.marker_key, self.uptime_key]
        if not isinstance(self._client, RedisCluster):
            keys.append(self.workers_key)
        elif renewed:
            renewed = await self._reach_all(self._client, within_s=outage_s / _PINGED)
        run, up_ms, most_ms = await self._run(
            "uptime", tuple(keys), _ms(outage_s), _ms(keep_s), int(renewed)
        )
        return Uptime(str(run), int(up_ms) / 1000, int(most_ms) / 1000)

    async def _reach_all(self, cluster: RedisCluster, *, within_s: float) -> bool:
        """Whether all nodes answer. The leases that are on a node lapse with it."""
        try:
            async with asyncio.timeout(within_s):
                with _translated(self._metrics):
                    await cluster.ping(target_nodes=RedisCluster.PRIMARIES)
        except (RuntimeUnavailable, TimeoutError):
            return False
        return True

    async def note_worker(self, worker: str, *, now_ms: int) -> None:
        """Record a heartbeat. Keeps the list of workers from expiring."""
        await self._ask_all(
            ("ZADD", self.workers_key, now_ms, worker), ("PERSIST", self.workers_key)
        )

    async def forget_worker(self, worker: str) -> None:
        """Delete what is stored of a worker, unless it still holds sessions: those have to be ended
        first."""
        if await self._ask("HLEN", self.held_key(worker)):
            return
        await self._ask("ZREM", self.workers_key, worker)
        await self.delete(self.worker_key(worker))

    async def worker_ids(self) -> list[str]:
        return list(await self._ask("ZRANGE", self.workers_key, 0, -1))

    async def silent_workers(self, *, for_s: float) -> list[str]:
        """Workers without a heartbeat for `for_s`."""
        before = await self.now_ms() - _ms(for_s)
        return list(await self._ask("ZRANGEBYSCORE", self.workers_key, 0, before))

    async def _run(self, script: str, keys: tuple[str, ...], *args: Any) -> Any:
        with _translated(self._metrics):
            try:
                return await self._execute("EVALSHA", DIGESTS[script], len(keys), *keys, *args)
            except NoScriptError:
                return await self._execute("EVAL", _SCRIPTS[script], len(keys), *keys, *args)

    async def limit(self, name: str, what: str, *args: str | float) -> list[str]:
        """A step of fleet/lua/limit.lua. The kinds of counts have keys of their own."""
        kind = what if what == "rate" else "sessions" if what.startswith("session") else "held"
        key = f"{self._namespace}:{{{_hashed(name)}}}:limit:{kind}"
        return [str(each) for each in await self._run("limit", (key,), what, *args)]

    async def keys_version(self) -> str | None:
        return await self.get(f"{self.keys_key}:version")

    async def api_keys(self) -> list[str]:
        return list(map(str, await self._ask("HVALS", self.keys_key)))

    async def put_api_keys(self, records: Mapping[str, str]) -> None:
        """All of them, or none."""
        with _translated(self._metrics):
            pipeline = self._client.pipeline(transaction=True)
            for key_id, record in records.items():
                pipeline.hset(self.keys_key, key_id, record)
            pipeline.incr(f"{self.keys_key}:version")
            await pipeline.execute()

    async def _ask_all(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send several commands in one pipeline; it is not a transaction."""
        with _translated(self._metrics):
            pipeline = self._client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute())

    async def _ask(self, *command: Any) -> Any:
        with _translated(self._metrics):
            return await self._execute(*command)

    async def _execute(self, *command: Any) -> Any:
        return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _translated(metrics: Metrics) -> Iterator[None]:
    """Translate errors of Redis. Raise a cancellation that redis-py lost: up to Python 3.11,
    asyncio.wait_for can swallow one."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    except (RedisError, OSError) as exc:
        if task.cancelling() > before:
            raise asyncio.CancelledError from exc
        metrics.redis_failed()
        raise RuntimeUnavailable(
            f"the registry does not answer ({type(exc).__name__}); retry in 1 s", retry_after_s=1
        ) from exc
    if task.cancelling() > before:
        raise asyncio.CancelledError


def _clients(url: str) -> list[Redis]:
    """The client of Redis, then those of its sentinels."""
    retry = Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), _RETRIES)
    options: dict[str, Any] = {
        "decode_responses": True,
        "socket_timeout": _ANSWER_S,
        "socket_connect_timeout": _ANSWER_S,
        "retry": retry,
    }
    parts = urlsplit(url)
    if parts.scheme in ("redis", "rediss", "unix"):
        return [Redis.from_url(url, **options)]
    if parts.scheme == "redis+cluster":
        cluster = RedisCluster.from_url(url.replace("redis+cluster", "redis", 1), **options)
        return [cast("Redis", cluster)]
    if parts.scheme == "redis+sentinel":
        return _through_sentinels(parts, options)
    raise ValueError("unknown scheme")


def _through_sentinels(parts: SplitResult, options: dict[str, Any]) -> list[Redis]:
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    service, _, db = parts.path.strip("/").partition("/")
    named = (host.partition(":") for host in hosts.split(","))
    sentinels = [(host, int(port or 26379)) for host, _, port in named]
    sentinel = Sentinel(sentinels, socket_timeout=_ANSWER_S)  # type: ignore[no-untyped-call]
    master = sentinel.master_for(
        service or "mymaster",
        db=int(db or 0),
        username=unquote(user) or None,
        password=unquote(password) or None,
        **options,
    )
    return [cast("Redis", master), *sentinel.sentinels]


def _hashed(*names: str) -> str:
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:32]


def flat(fields: dict[str, Any]) -> list[Any]:
    return [part for item in fields.items() for part in item]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
