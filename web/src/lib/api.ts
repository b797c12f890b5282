/** Calls of the HTTP interface, with the key of whoever signed in. */
import { signal } from "@preact/signals";

const STORED = "sandbox.key";

/** Kept for this tab alone: it is gone when the tab is closed. */
export const key = signal(sessionStorage.getItem(STORED) ?? "");
/** Set when the server wants a key, or another one. */
export const refusedKey = signal<string | null>(null);

/** The server's own address. The page is one folder below it, also behind a proxy with a prefix. */
const server = new URL("..", document.baseURI);

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
  }

  /** Whether the same call may work later. */
  get passing(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

export type Query = Record<string, string | number | boolean | undefined | null>;

interface Call {
  query?: Query;
  json?: unknown;
  form?: FormData;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

export function signIn(given: string): void {
  sessionStorage.setItem(STORED, given);
  refusedKey.value = null;
  key.value = given;
}

export function signOut(): void {
  sessionStorage.removeItem(STORED);
  key.value = "";
  refusedKey.value = "";
}

export function address(path: string, query: Query = {}): URL {
  const url = new URL(path, server);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, String(value));
  }
  return url;
}

/** Raises ApiError; its status is 0 where the server did not answer. */
export async function send(method: "GET" | "POST", path: string, call: Call = {}): Promise<Response> {
  const headers: Record<string, string> = { ...call.headers };
  if (key.value) headers["X-API-Key"] = asBytes(key.value);
  if (call.json !== undefined) headers["Content-Type"] = "application/json";
  const body = call.form ?? (call.json === undefined ? undefined : JSON.stringify(call.json));
  let answer: Response;
  try {
    answer = await fetch(address(path, call.query), { method, headers, body, signal: call.signal, cache: "no-store" });
  } catch (error) {
    if (call.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  if (answer.ok) return answer;
  const error = await errorOf(answer);
  if (answer.status === 401) refusedKey.value = key.value ? error.message : "";
  throw error;
}

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return (await send("GET", path, { query, signal })).json() as Promise<T>;
}

export async function post<T>(path: string, json: unknown): Promise<T> {
  return (await send("POST", path, { json })).json() as Promise<T>;
}

/** The protocols of a WebSocket: a page cannot set its headers, so the key is one of them. */
export function socketProtocols(): string[] {
  const encoded = btoa(asBytes(key.value)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return key.value ? ["sandbox.v1", `sandbox.key.${encoded}`] : ["sandbox.v1"];
}

async function errorOf(answer: Response): Promise<ApiError> {
  const body = await answer.json().catch(() => ({}));
  const { code, message, details } = body.error ?? {};
  return new ApiError(answer.status, code ?? "unknown", message ?? `The server answered ${answer.status}.`, details ?? body);
}

/** A text as the bytes of its UTF-8, one character each: what headers and btoa() take. */
function asBytes(text: string): string {
  return String.fromCharCode(...new TextEncoder().encode(text));
}
