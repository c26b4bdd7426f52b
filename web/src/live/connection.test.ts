import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { get } from "../api/client";
import { BEAT_MS, PROBE_MS, currentConnection, isOutage, onReturn, watchConnection } from "./connection";

const none = () => undefined;
let answers: () => Response;
let requests: string[];
let stop: () => void;

function start(hostname: string): void {
  vi.stubGlobal("location", { hostname });
  stop = watchConnection();
}

beforeEach(() => {
  vi.useFakeTimers();
  requests = [];
  vi.stubGlobal("window", { addEventListener: none, removeEventListener: none, setTimeout: (run: () => void, ms: number) => setTimeout(run, ms) });
  vi.stubGlobal("document", { hidden: false, addEventListener: none, removeEventListener: none, querySelector: () => null });
  vi.stubGlobal("localStorage", { getItem: () => null, setItem: none, removeItem: none });
  vi.stubGlobal("fetch", async (path: string) => {
    requests.push(path);
    return answers();
  });
  answers = () => new Response("{}");
});

afterEach(() => {
  stop();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function refuse(): Response {
  throw new TypeError("connection refused");
}

test("an outage begins with a request that nobody answers and ends with an answer", async () => {
  start("cluster.example.com");
  let returns = 0;
  const end = onReturn(() => (returns += 1));
  answers = refuse;
  const error = await get("/api/v1/whoami").catch((failure: unknown) => failure);
  expect(isOutage(error)).toBe(true);
  expect(currentConnection().lostMs).not.toBeNull();
  await vi.advanceTimersByTimeAsync(2 * PROBE_MS);
  expect(returns).toBe(0);
  answers = () => new Response("{}");
  await vi.advanceTimersByTimeAsync(PROBE_MS);
  expect([currentConnection().lostMs, returns]).toEqual([null, 1]);
  end();
});

test("a gateway's answer is an outage, and an error of the cluster is none", async () => {
  start("cluster.example.com");
  answers = () => new Response("Bad Gateway", { status: 502 });
  await get("/api/v1/whoami").catch(none);
  expect(currentConnection().lostMs).not.toBeNull();
  answers = () => new Response('{"error": {"code": "unavailable", "message": "try again", "details": []}}', { status: 503 });
  await get("/api/v1/whoami").catch(none);
  expect(currentConnection().lostMs).toBeNull();
});

test("only the page of a cluster on this machine asks without a reason", async () => {
  start("cluster.example.com");
  await vi.advanceTimersByTimeAsync(10 * BEAT_MS);
  expect(requests).toEqual([]);
  stop();
  start("127.0.0.1");
  await vi.advanceTimersByTimeAsync(2 * BEAT_MS);
  expect(requests).toEqual(["/api/v1/health", "/api/v1/health"]);
  answers = refuse;
  await vi.advanceTimersByTimeAsync(BEAT_MS);
  expect(currentConnection().lostMs).not.toBeNull();
  answers = () => new Response("{}");
  await vi.advanceTimersByTimeAsync(PROBE_MS);
});
