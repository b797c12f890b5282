"""Every setting: its name, type, default and meaning, and whom it concerns."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from sandbox_sdk.protocol.models import COMMAND_TIMEOUT_S, MAX_TIMEOUT_S
from sandbox_server.runtime.box_network import Network
from sandbox_server.runtime.registry import AUTO
from sandbox_server.settings.capacity import default_max_sessions
from sandbox_server.settings.fields import (
    ALL,
    FLEET,
    MAKES_BOXES,
    PREFIX,
    SERVERS,
    Listed,
    Role,
    Seconds,
    Size,
    setting,
)
from sandbox_warden.requests import MAX_OUTPUT_LIMIT, MIN_OUTPUT_LIMIT

_box = partial(setting, topic="Boxes", roles=MAKES_BOXES)
_pod = partial(_box, runtimes=("kubernetes",))
_network = partial(setting, topic="The network of boxes", roles=MAKES_BOXES)
_session = partial(setting, topic="Sessions and commands", roles=MAKES_BOXES)
_pool = partial(setting, topic="The pool", roles=MAKES_BOXES, ge=0)
_stored = partial(setting, topic="What is kept after a session", roles=MAKES_BOXES)
_usage = partial(setting, topic="Usage", roles=ALL)
_server = partial(setting, topic="The server", roles=SERVERS)
_fleet = partial(setting, topic="A fleet", roles=FLEET)


class DeclaredSettings(BaseSettings):
    """Fields alone; `Settings` checks them and says what follows from them."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", populate_by_name=True
    )

    runtime: str = _box(
        AUTO,
        "What makes boxes: docker, bubblewrap, kubernetes, e2b, or auto for docker where an engine"
        " answers and bubblewrap elsewhere.",
    )
    providers: Listed = _box(
        (),
        "The runtimes that a session can choose from, by name with commas between them. The first"
        " is for sessions that do not choose, and the only one with boxes ready ahead.",
        otherwise="SANDBOX_RUNTIME alone",
        example="docker,bubblewrap",
    )
    image: str = _box(
        "sandbox-secure:latest",
        "The image of a box. It needs bash, and on kubernetes python3.",
        runtimes=("docker", "kubernetes"),
        min_length=1,
    )
    environments: dict[str, str] = _box(
        dict,
        "Images that callers can choose by name. Where boxes have no image, a name stands for its"
        " policy alone.",
        runtimes=("docker", "kubernetes"),
        unit="JSON object",
        example='{"node": "node:20"}',
    )
    docker_runtime: str | None = _box(
        None,
        "The engine's runtime that boxes run on, such as runsc for gVisor.",
        runtimes=("docker",),
        otherwise="the engine's own",
        example="runsc",
    )
    e2b_api_key: SecretStr | None = _box(
        None,
        "The key of the account at E2B in which the boxes of the e2b runtime are made.",
        runtimes=("e2b",),
        otherwise="E2B_API_KEY",
        example="e2b_...",
    )
    e2b_api_url: str | None = _box(
        None,
        "Where E2B's API is, or that of a server that speaks it.",
        runtimes=("e2b",),
        otherwise="E2B_API_URL, or E2B's own",
        example="https://api.e2b.example.com",
    )
    e2b_sandbox_url: str | None = _box(
        None,
        "One address for all sandboxes of that API.",
        runtimes=("e2b",),
        otherwise="E2B_SANDBOX_URL, or one for each sandbox",
        example="https://sandbox.e2b.example.com",
    )
    e2b_domain: str | None = _box(
        None,
        "The domain of an E2B of your own.",
        runtimes=("e2b",),
        otherwise="E2B_DOMAIN, or E2B's own",
        example="e2b.example.com",
    )
    e2b_template: str | None = _box(
        None,
        "The E2B template of boxes whose environment names none.",
        runtimes=("e2b",),
        otherwise="base",
        example="base",
    )
    kubernetes_kubeconfig: str | None = _pod(
        None,
        "The kubeconfig of the cluster in which the boxes of the kubernetes runtime are pods.",
        otherwise="KUBECONFIG, the service account of the server's own pod, or ~/.kube/config",
        example="/etc/sandbox/kubeconfig",
    )
    kubernetes_namespace: str | None = _pod(
        None,
        "The namespace of these pods.",
        otherwise="that of the kubeconfig's context, or of the server's own pod",
        example="sandboxes",
    )
    kubernetes_runtime_class: str | None = _pod(
        None,
        "The RuntimeClass of these pods, such as gVisor's or Kata's.",
        otherwise="the cluster's own runtime",
        example="gvisor",
    )
    kubernetes_node_selector: dict[str, str] = _pod(
        dict,
        "Labels that a node has to have to get these pods.",
        unit="JSON object",
        otherwise="any node",
        example='{"pool": "sandboxes"}',
    )
    kubernetes_tolerations: tuple[dict[str, Any], ...] = _pod(
        (),
        "Taints of nodes that these pods tolerate.",
        unit="JSON list",
        otherwise="none",
        example='[{"key": "sandboxes", "operator": "Exists"}]',
    )
    kubernetes_priority_class: str | None = _pod(
        None, "The PriorityClass of these pods.", otherwise="the cluster's own", example="sandboxes"
    )
    kubernetes_pull_secret: str | None = _pod(
        None,
        "The secret with which nodes pull the image of these pods.",
        otherwise="none",
        example="registry",
    )
    kubernetes_requests: float = _pod(
        0.25,
        "The part of its limits that such a pod requests. Nodes are filled up by requests.",
        unit="part",
        gt=0,
        le=1,
    )
    kubernetes_placement: Seconds = _pod(
        15.0,
        "How long such a pod may wait for a node, for one in which an autoscaler adds it. Then"
        " its caller is told `capacity`, with the scheduler's reason.",
    )
    kubernetes_eviction: Seconds = _pod(
        30.0,
        "How long a pod lives on that somebody evicts or deletes, as in a drain of its node: for"
        " commands to end and for checkpoints of sessions that persist.",
    )
    kubernetes_stream: Literal["auto", "exec", "tcp"] = _pod(
        "auto",
        "How the server reaches these pods: `exec` through the API server; `tcp` directly, with TLS"
        " and with keys on both sides; `auto` is tcp where pods can be reached, else exec.",
    )
    kubernetes_warm_pool: int = _pod(
        0,
        "Where the cluster has kubernetes-sigs/agent-sandbox: how many pods its warm pools keep"
        " ready. Boxes with the server's own limits are then claimed from these.",
        unit="number",
        ge=0,
        otherwise="boxes are pods that the server makes",
        example="10",
    )
    memory_limit: Size = _box(512 << 20, "Memory of a box.", plain="MEMORY_LIMIT")
    cpu_limit: float = _box(0.5, "CPU time of a box.", unit="cores", gt=0, allow_inf_nan=False)
    pids_limit: int = _box(256, "Processes and threads in a box.", unit="number", ge=16)
    disk_limit: Size = _box(1 << 30, "Disk of a box, which is its /workspace.")
    max_memory: Size | None = _box(
        None,
        "The most memory that a session can ask for.",
        otherwise="SANDBOX_MEMORY_LIMIT",
        example="4g",
    )
    max_cpus: float | None = _box(
        None,
        "The most CPU time that a session can ask for.",
        unit="cores",
        otherwise="SANDBOX_CPU_LIMIT",
        example="2",
        gt=0,
        allow_inf_nan=False,
    )
    max_pids: int | None = _box(
        None,
        "The most processes that a session can ask for.",
        unit="number",
        otherwise="SANDBOX_PIDS_LIMIT",
        example="1024",
        ge=16,
    )
    max_disk: Size | None = _box(
        None,
        "The largest disk that a session can ask for.",
        otherwise="SANDBOX_DISK_LIMIT",
        example="10g",
    )
    network: Network = _network(
        "none",
        "What boxes can reach: none, allowlist (what SANDBOX_NETWORK_ALLOW names), open (any public"
        " host), or bridge, the network of a Docker engine.",
    )
    max_network: Network | None = _network(
        None,
        "The most that a session or an environment can ask for.",
        otherwise="SANDBOX_NETWORK, or what the environment has",
        example="open",
    )
    network_allow: Listed = _network(
        (),
        "What boxes with the network allowlist can reach: hosts, *.hosts below, addresses, each"
        " with :port or without, and names of presets, with commas between them. indexes is where"
        " this machine's own pip, npm and apt get packages.",
        otherwise="nothing",
        example="indexes,docs.example.com,*.example.org:8443",
    )
    network_presets: Path | None = _network(
        None,
        "A folder with presets, YAML files with rules (docs/network.md).",
        otherwise="there is indexes alone",
        example="/etc/sandbox/network",
    )
    network_connections: int = _network(
        64, "Connections of one session at the same time.", unit="number", ge=1, le=200
    )
    network_bytes: Size = _network(
        10 << 30, "Bytes that one session can send and receive in a day of UTC."
    )
    network_rate: Size | None = _network(
        None,
        "Bytes a second that one session can send and receive.",
        otherwise="not bounded",
        example="10m",
    )

    idle_timeout: Seconds = _session(1800.0, "How long after its last use a session ends.", gt=0)
    command_timeout: Seconds = _session(
        COMMAND_TIMEOUT_S,
        "After what time a command is ended whose call does not say; 1h at most.",
        gt=0,
        le=MAX_TIMEOUT_S,
    )
    endless_commands: bool = _session(
        True, "Whether a call may ask for a command without a time limit, with the timeout 0."
    )
    max_sessions: int = _session(
        default_max_sessions,
        "Sessions at the same time; more are told to wait.",
        unit="number",
        otherwise="one for every 12 MiB of memory, at least 50",
        example="500",
        ge=1,
    )
    total_memory: Size | None = _session(
        None,
        "What the memory limits of all sessions may come to; sessions beyond it are told to wait.",
        otherwise="not bounded: few sessions use all of theirs at the same time",
        example="48g",
    )
    output_limit: Size = _session(
        1 << 20,
        "What is kept of a command's output; 4k to 64m.",
        ge=MIN_OUTPUT_LIMIT,
        le=MAX_OUTPUT_LIMIT,
    )
    max_upload: Size = setting(
        100 << 20,
        "The largest file that can be uploaded.",
        topic="Sessions and commands",
        roles=ALL,
    )
    policy: str = _session(
        "default",
        "What commands may run: a built-in set (default, strict, open) or the path of a rule file.",
    )
    policies: dict[str, str] = _session(
        dict,
        "Policies of environments that override the policy, by name.",
        unit="JSON object",
        example='{"node": "strict"}',
    )
    registry: Path | None = _session(
        None,
        "The folder in which agents, tools, prompts and environments are declared"
        " (docs/registry.md).",
        otherwise="registry/ beside the settings file, or only what is built in",
        example="/etc/sandbox/registry",
    )
    audit_log: Path | None = _session(
        None,
        "A file for what callers do: verdicts of the policy, calls that change something or read"
        " contents, connections of boxes (docs/audit.md).",
        otherwise="none is written",
        example="/var/log/sandbox-audit.log",
    )
    audit_commands: Literal["text", "hash", "off"] = _session(
        "text",
        "What the audit log has of commands and code: text with size and digest, hash for size and"
        " digest alone, or off.",
    )
    audit_full: Literal["refuse", "continue"] = _session(
        "continue",
        "What becomes of calls while the audit log cannot be written: refuse (they fail with"
        " audit_unavailable) or continue (what is not recorded is counted).",
    )
    audit_size: Size = _session(
        100 << 20, "The size of the audit log at which the next file begins."
    )
    audit_files: int = _session(
        20, "Earlier files of the audit log that are kept.", unit="number", ge=1
    )
    state_dir: Path | None = _session(
        None,
        "The folder for what must survive a restart.",
        otherwise="/var/lib/sandbox for root, else ~/.local/state/sandbox",
        example="/var/lib/sandbox",
    )
    destroy_on_exit: bool = _session(
        False, "End all sessions when the server or program stops, instead of keeping them."
    )

    pool_size: int = _pool(
        5, "Boxes kept ready before anybody asks.", unit="number", plain="POOL_SIZE"
    )
    min_pool_size: int = _pool(
        2, "Boxes kept ready after ten minutes without use.", unit="number", plain="MIN_POOL_SIZE"
    )
    max_pool_size: int = _pool(
        20, "Boxes kept ready in the busiest time.", unit="number", plain="MAX_POOL_SIZE"
    )

    artifact_quota: Size = _stored(
        1 << 30, "Artifacts of one tenant together; if there are more, the oldest go."
    )
    artifact_retention: Seconds = _stored(7 * 86400.0, "How long an artifact is kept.", gt=0)
    checkpoints: str = _stored(
        "folder",
        "Where checkpoints are kept: folder (in the state folder), s3://BUCKET/PREFIX, or off.",
        unit="text",
        example="s3://checkpoints/sandbox?endpoint=https://s3.example.com",
    )
    checkpoint_quota: Size = _stored(
        10 << 30,
        "Checkpoints of one tenant together; if there are more, the oldest automatic ones go.",
    )
    checkpoint_retention: Seconds = _stored(
        30 * 86400.0, "How long an automatic checkpoint is kept.", gt=0
    )
    undo_quota: Size = _stored(
        1 << 30,
        "Bytes that the history of one thread may take; if there are more, the oldest points go.",
        gt=0,
    )
    volume_size: Size = _stored(1 << 30, "The size of a volume whose maker does not say.")
    volume_quota: Size = _stored(10 << 30, "What the sizes of one tenant's volumes may come to.")
    bind_folders: Listed = _stored(
        (),
        "Folders of this machine that sessions can have in /workspace, each as /FOLDER:ro or"
        " /FOLDER:rw, with commas between them. Of one with ro, folders in it too.",
        otherwise="none; in-process, any",
        example="/data/models:ro,/srv/shared:rw",
    )
    disk_pool: bool = _stored(
        True,
        "Whether the server may make a file with XFS in the state folder, for disks of boxes that"
        " can be copied at no cost; only as root, and where the folder itself has no reflinks.",
    )
    usage_days: int = _usage(
        400, "Days for which it is kept what each tenant used.", unit="number", ge=1, le=4000
    )
    usage_detail_days: int = _usage(
        35,
        "Days for which it is kept what each thread and session used.",
        unit="number",
        ge=1,
        le=400,
    )
    prices: str = _usage(
        "",
        "Prices, for the cost in answers about usage: of a command, cpu_second, session_hour,"
        " gb_hour_memory, gb_in, gb_out, gb_egress and gb_day_storage, and their currency.",
        otherwise="none: no cost is told",
        example="cpu_second=0.00001,gb_out=0.05,currency=EUR",
    )
    budgets: str = _usage(
        "",
        "What tenants and keys may use in a day of UTC: commands, cpu_seconds, command_seconds,"
        " session_seconds, bytes_in, bytes_out, egress_bytes, and of tenants storage_bytes. `*` is"
        " for those that are not named; `key ID` or `key *` in the place of a tenant.",
        otherwise="not bounded",
        roles=MAKES_BOXES,
        example="acme:cpu_seconds=3600,egress_bytes=10g;*:commands=10000;key *:cpu_seconds=600",
    )
    history_retention: Seconds = _stored(
        7 * 86400.0, "How long an ended session is remembered.", roles=ALL, gt=0
    )
    history_sessions: int = _stored(
        10_000,
        "Sessions of one tenant that are remembered; if there are more, the oldest go.",
        unit="number",
        roles=ALL,
        ge=1,
    )
    history_commands: int = _stored(
        1000,
        "Commands of one session that are remembered, with the end of their output; 0 for none.",
        unit="number",
        roles=ALL,
        ge=0,
    )

    role: Role = _server("standalone", "All in one, or a part of a fleet: worker or coordinator.")
    host: str = _server("127.0.0.1", "The address to listen on.")
    port: int | None = _server(
        None,
        "The port to listen on; 0 picks a free one.",
        otherwise="8000, of a worker 5000",
        example="8000",
        plain="PORT",
        ge=0,
        le=65535,
    )
    processes: int = _server(
        1,
        "How many processes do the work of this server; each uses one core.",
        roles=("standalone", "worker"),
        unit="number",
        ge=1,
        le=256,
    )
    worker_id: str = _server(
        "",
        "The name that boxes and sessions belong to. The next server of this name takes them over.",
        otherwise="host name and port",
        example="worker-1",
        plain="WORKER_ID",
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,63})?$",
    )
    api_keys: Annotated[SecretStr, NoDecode] = _server(
        SecretStr(""),
        "The keys of callers, each with the tenant it belongs to: tenant:key, with commas between"
        " them. Needed on every address but loopback.",
        otherwise="callers need none",
        example="acme:key1,globex:key2",
    )
    tenant_limits: str = _server(
        "",
        "How much tenants and keys may ask for: requests a second (and burst), commands at a time,"
        " live sessions, sessions_per_hour. TENANT: limit=number, …; * for all others, and `key ID`"
        " or `key *` in the place of a tenant. The same on all servers of a fleet.",
        otherwise="no limits",
        example="acme: requests=50, commands=20, sessions=100; *: requests=10, sessions=10",
    )
    webhooks: Path | None = _server(
        None,
        "A YAML file with webhooks, which are told what happens (docs/events.md).",
        otherwise="nobody is told",
        example="/etc/agent-sandbox/webhooks.yaml",
    )
    webhook_attempts: int = _server(
        12,
        "How often a webhook is tried before it is given up: after seconds at first, then up to an"
        " hour, twelve times in some nine hours.",
        ge=1,
        le=30,
    )
    jwt_keys: str = _server(
        "",
        "The public keys of an identity provider whose tokens (JWT) callers may send: a JWKS file,"
        " or its URL.",
        otherwise="tokens are refused",
        example="https://login.example.com/.well-known/jwks.json",
    )
    jwt_issuer: str = _server(
        "",
        "Who has to have issued tokens.",
        otherwise="anyone with the keys",
        example="https://login.example.com/",
    )
    jwt_audience: str = _server(
        "", "For whom tokens have to be.", otherwise="anyone", example="sandboxes"
    )
    jwt_tenant: str = _server("tenant", "The claim of a token that names the tenant.")
    jwt_scopes: str = _server("scope", "The claim of a token that lists its scopes.")
    allowed_hosts: Listed = _server(
        (),
        "Further host names that a server without keys answers to, with commas between them; * for"
        " any.",
        otherwise="localhost, this machine's name and the address it listens on",
        example="sandbox.internal",
    )
    console: bool = _server(
        True, "Serve the console, for people, at /console.", roles=("standalone", "coordinator")
    )
    previews: bool = _server(
        True,
        "Whether ports of sandboxes can be exposed to browsers, at a port of their own"
        " (docs/network.md).",
        roles=("standalone", "coordinator"),
    )
    preview_port: int | None = _server(
        None,
        "The port at which previews are served; 0 picks a free one.",
        roles=("standalone", "coordinator"),
        otherwise="one more than the server's own; a free one if that is 0",
        example="8001",
        ge=0,
        le=65535,
    )
    preview_url: str = _server(
        "",
        "How browsers reach that port, where a proxy is before it: every preview has a host name"
        " below this one's, which needs a wildcard name and certificate.",
        roles=("standalone", "coordinator"),
        otherwise="http://localhost with the port",
        example="https://previews.example.com",
    )
    metrics: bool = _server(
        True, "Measure what the server does, and serve it to Prometheus at /metrics."
    )
    metrics_port: int | None = _server(
        None,
        "A further port for /metrics, which needs no key: for a network in which only Prometheus"
        " reaches it. Of a worker with several processes, the first of as many.",
        otherwise="at the server's own port alone, with a key",
        example="9464",
        ge=0,
        le=65535,
    )
    traces: str = _server(
        "",
        "Where to send traces: the URL of an OpenTelemetry collector (OTLP over HTTP), or env for"
        " what the OTEL_… variables say. Needs the extra `traces` (docs/traces.md).",
        otherwise="none are made",
        example="http://127.0.0.1:4318",
    )
    trace_commands: bool = _server(
        False,
        "Whether traces contain the text of commands and code, in which there may be secrets.",
    )
    insecure: bool = _server(False, "Listen on other addresses than loopback without keys.")
    drain_timeout: Seconds = _server(
        20.0, "How long open calls may take to end when the server stops."
    )
    log_format: Literal["auto", "json", "console"] = _server(
        "auto",
        "json, console for people, or auto: console on a terminal. Lines of requests are written"
        " within 50 ms, all others at once.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _server(
        "info", "What is logged: debug, info, warning or error."
    )

    redis_url: SecretStr | None = _fleet(
        None,
        "The Redis of the fleet: redis://, rediss://, unix://, redis+sentinel:// or"
        " redis+cluster://.",
        otherwise="SANDBOX_REDIS_HOST and SANDBOX_REDIS_PORT",
        example="redis://redis.example.com:6379/0",
        plain="REDIS_URL",
    )
    redis_host: str | None = _fleet(
        None,
        "The host of Redis, where there is no URL.",
        otherwise="SANDBOX_REDIS_URL",
        example="redis.example.com",
        plain="REDIS_HOST",
    )
    redis_port: int = _fleet(6379, "The port of Redis.", plain="REDIS_PORT", ge=1, le=65535)
    redis_namespace: str = _fleet(
        "sandbox",
        "Fleets with different ones can share a Redis.",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
    )
    fleet_key: SecretStr = _fleet(
        SecretStr(""),
        "The key that coordinators show to workers; the same everywhere.",
        otherwise="workers need none",
        example="a-long-random-text",
    )
    lease: Seconds = _fleet(
        10.0,
        "How long a worker may serve without renewing its lease; the same everywhere.",
        ge=0.3,
        le=3600,
    )
    grace: Seconds = _fleet(
        20.0,
        "How long a worker may be away, beyond its lease, before its sessions are given up; the"
        " same everywhere.",
    )
    hand_over: bool = _fleet(
        False,
        "A worker that stops leaves its sessions to the others at once, instead of to its next"
        " process. For workers whose name changes with every start, and whose boxes are pods.",
        roles=("worker",),
    )
    advertise: str = _fleet(
        "",
        "The URL at which coordinators reach this worker.",
        roles=("worker",),
        otherwise="where it listens",
        example="http://10.0.0.21:5000",
    )
    workers: Listed = _fleet(
        (),
        "The only workers a coordinator turns to: URLs with commas between them.",
        roles=("coordinator",),
        otherwise="all that register",
        example="http://10.0.0.21:5000,http://10.0.0.22:5000",
        plain="WORKERS",
    )
    patience: Seconds = _fleet(
        30.0,
        "How long a coordinator keeps a call that no worker can serve; not below lease and grace.",
        roles=("coordinator",),
    )
