/** What the server answers, as far as the console uses it. API_REFERENCE.md has the rest. */

/** A row of the live list, as GET /console/sessions sends it. */
export interface Row {
  session_id: string;
  thread_id: string;
  generation: number;
  worker: string;
  runtime: string;
  environment: string | null;
  state: "idle" | "busy";
  /** Seconds since 1970, by the server's clock. */
  created_at: number;
  used_at: number;
  expires_at: number;
}

export interface Usage {
  cpu_s: number;
  memory_bytes: number | null;
  disk_bytes: number | null;
  pids: number;
}

export interface SessionInfo {
  session_id: string;
  thread_id: string;
  generation: number;
  worker: string;
  runtime: string;
  environment: string | null;
  sandbox_id: string;
  state: "idle" | "busy";
  created_at: string;
  expires_at: string;
  idle_s: number;
  commands: number;
  usage: Usage;
  limits: {
    memory_bytes: number;
    cpus: number;
    pids: number;
    disk_bytes: number;
    upload_limit_bytes: number;
    network: string;
  };
}

export interface Checkpoint {
  checkpoint_id: string;
  thread_id: string;
  name: string | null;
  automatic: boolean;
  created_at: string;
  size: number;
}

export interface CommandInfo {
  command_id: string;
  command?: string | null;
  running: boolean;
  exit_code: number | null;
  age_s: number;
  output_bytes: number;
  is_code: boolean;
  pty: { rows: number; cols: number } | null;
}

export interface ExecuteResult {
  exit_code: number | null;
  output: string;
  duration_ms: number;
  timed_out: boolean;
  truncated: boolean;
  output_bytes: number;
  reason: string | null;
  hint: string | null;
}

export interface SimpleCommand {
  argv: (string | null)[];
  text: string;
  start: number;
  end: number;
  via: string[];
}

export interface Verdict {
  allowed: boolean;
  policy: string;
  mode: string;
  rule: string | null;
  reason: string | null;
  alternative: string | null;
  command: SimpleCommand | null;
  doubts: string[];
  commands: SimpleCommand[];
}

export interface FileEntry {
  name: string;
  path: string;
  type: "file" | "directory" | "symlink" | "other";
  size: number;
  mode: string;
  modified_at: string;
}

export interface Artifact {
  artifact_id: string;
  path: string;
  size: number;
  mime: string;
  created_at: string;
}

export interface StoredSession {
  session_id: string;
  thread_id: string;
  generation: number;
  provider: string;
  environment: string | null;
  agent: string | null;
  worker: string;
  state: "live" | "cleaned" | "expired" | "lost";
  created_at: string;
  ended_at: string | null;
  commands: number;
}

export interface StoredCommand {
  command_id: string;
  command: string;
  at: string;
  exit_code: number | null;
  duration_ms: number;
  output: string;
}

export interface StoredSessionDetail extends StoredSession {
  log: StoredCommand[];
  log_truncated: boolean;
  artifacts: Artifact[];
}

export interface WorkerHealth {
  worker_id: string;
  state: string;
  runtime: string;
  sessions: number;
  capacity: number;
  warm: number;
  version: string;
}

export interface Health {
  status: "healthy" | "degraded" | "unhealthy";
  role: string;
  worker_id: string;
  runtime: string;
  pool_size: number;
  active_sessions: number;
  capacity: number;
  version: string;
  uptime_s: number;
  checks: Record<string, string>;
  providers: string[];
  workers?: WorkerHealth[];
}
