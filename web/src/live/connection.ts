/**
 * Whether the cluster answers. During an outage the page asks for its health every second, and each
 * live value loads again at once when the cluster answers.
 */

import { ApiError, onAnswer } from "../api/client";
import { apiUrl, isElsewhere } from "../api/place";

export const PROBE_MS = 1_000;
/** Where the cluster runs on this machine, the page asks so long after the last answer: an outage shows within two seconds. */
export const BEAT_MS = 1_700;
// A busy cluster answers late; only a frozen one needs longer.
const PATIENCE_MS = 20_000;
const LOOPBACK = new Set(["127.0.0.1", "localhost", "[::1]"]);

export interface Connection {
  /** When the outage began, in epoch milliseconds; null while the cluster answers. */
  lostMs: number | null;
}

type Listener = (connection: Connection) => void;

let connection: Connection = { lostMs: null };
let timer = 0;
const listeners = new Set<Listener>();
const returns = new Set<() => void>();

/** Return whether an error means that no cluster answers: no answer, or a gateway's answer in place of the cluster's. */
export function isOutage(error: unknown): boolean {
  return error instanceof ApiError && isOutageStatus(error.status, error.code);
}

function isOutageStatus(status: number, code: string): boolean {
  return status === 0 || ([502, 503, 504].includes(status) && code === "internal");
}

export function currentConnection(): Connection {
  return connection;
}

/** Call `listener` when the cluster stops answering or answers again; returns what ends that. */
export function onConnectionChange(listener: Listener): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** Call `listener` each time that the cluster answers again after an outage; returns what ends that. */
export function onReturn(listener: () => void): () => void {
  returns.add(listener);
  return () => void returns.delete(listener);
}

/** Watch the answers to all requests, and the cluster itself where that is cheap; returns what ends that. */
export function watchConnection(): () => void {
  const end = onAnswer((status, code) => {
    if (isOutageStatus(status, code)) lose();
    else regain();
    plan();
  });
  const onLine = () => void probe();
  const onOffline = () => {
    lose();
    plan();
  };
  const onVisibility = () => !document.hidden && void probe();
  window.addEventListener("offline", onOffline);
  window.addEventListener("online", onLine);
  document.addEventListener("visibilitychange", onVisibility);
  plan();
  return () => {
    end();
    clearTimeout(timer);
    window.removeEventListener("offline", onOffline);
    window.removeEventListener("online", onLine);
    document.removeEventListener("visibilitychange", onVisibility);
  };
}

function lose(): void {
  if (connection.lostMs === null) change({ lostMs: Date.now() });
}

function regain(): void {
  if (connection.lostMs === null) return;
  change({ lostMs: null });
  returns.forEach((listener) => listener());
}

function change(next: Connection): void {
  connection = next;
  listeners.forEach((listener) => listener(connection));
}

function plan(): void {
  clearTimeout(timer);
  const waitMs = connection.lostMs !== null ? PROBE_MS : isLocal() ? BEAT_MS : null;
  if (waitMs === null || document.hidden) return;
  timer = window.setTimeout(() => void probe(), waitMs);
}

/** Whether the cluster runs on this machine, where a request costs nothing. */
export function isLocal(): boolean {
  return LOOPBACK.has(isElsewhere() ? new URL(apiUrl()).hostname : location.hostname);
}

/** Ask for the health of the cluster once. */
export async function probe(): Promise<void> {
  clearTimeout(timer);
  try {
    const answer = await fetch(`${apiUrl()}/api/v1/health`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (answer.ok) regain();
    else if (isOutageStatus(answer.status, "internal")) lose();
  } catch {
    lose();
  }
  plan();
}
