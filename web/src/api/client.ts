/** Requests to the API, with the routes and types of its OpenAPI document. */

import type { components, paths } from "./schema";
import { exactText, parseAnswer } from "./exact_json";
import { apiUrl, isElsewhere } from "./place";
import { expireSession, sessionHeaders, sessionKey } from "./session";

export type Schemas = components["schemas"];

type Verb = "get" | "post" | "patch" | "put" | "delete";
type Json<R> = R extends { content: { "application/json": infer J } } ? J : never;
type AnswerOf<O> = O extends { responses: infer R }
  ? Json<R[keyof R & (200 | 201)]>
  : never;
type BodyOf<O> = O extends { requestBody?: { content: { "application/json": infer B } } } ? B : never;
type Loose<B> = B extends object ? Partial<B> : B;
type PathsWith<V extends Verb> = {
  [P in keyof paths]: paths[P] extends Record<V, { responses: unknown }> ? P : never;
}[keyof paths];

export type Query = Record<string, string | number | boolean | string[] | null | undefined>;
export interface Where {
  path?: Record<string, string | number>;
  query?: Query;
  signal?: AbortSignal;
}

/** An answer that is no success, in the words of the cluster; status 0: none came. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: Schemas["DetailAnswer"][] = [],
  ) {
    super(message);
  }
}

/** What a route answers to GET. */
export function get<P extends PathsWith<"get">>(
  route: P,
  where: Where = {},
): Promise<AnswerOf<paths[P]["get"]>> {
  return request("GET", route, where);
}

/** Send a change; a repetition that the browser or a proxy makes changes nothing again. */
export function send<V extends "post" | "patch" | "put" | "delete", P extends PathsWith<V>>(
  verb: V,
  route: P,
  where: Where & { body?: Loose<BodyOf<paths[P][V]>> } = {},
): Promise<AnswerOf<paths[P][V]>> {
  return request(verb.toUpperCase(), route, where, where.body);
}

async function request<T>(method: string, route: string, where: Where, body?: unknown): Promise<T> {
  const key = sessionKey();
  const headers: Record<string, string> = key ? sessionHeaders(key) : {};
  if (method !== "GET") headers["Idempotency-Key"] = crypto.randomUUID();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  // To an API elsewhere nothing goes along but what is written here.
  const credentials = isElsewhere() ? "omit" : "same-origin";
  const options: RequestInit = { method, headers, credentials, signal: where.signal ?? null };
  if (body !== undefined) options.body = exactText(body);
  let answer: Response;
  try {
    answer = await fetch(address(route, where), options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    report(0, "unreachable");
    throw new ApiError(0, "unreachable", unreachableText());
  }
  if (answer.ok) report(answer.status, "");
  if (answer.ok) return (answer.status === 204 ? undefined : parseAnswer(await answer.text())) as T;
  throw await readError(answer, key);
}

/** Why there may be no answer. */
export function unreachableText(): string {
  if (!isElsewhere()) return "the cluster does not answer; is it running?";
  // A browser keeps from scripts why it did not let them ask.
  return (
    `the cluster at ${apiUrl()} does not answer: it is not running, or page_origins in its ` +
    `configuration does not name ${location.origin}`
  );
}

function address(route: string, where: Where): string {
  const path = apiUrl() + route.replace(/\{(\w+)\}/g, (_, name: string) =>
    encodeURIComponent(String(where.path?.[name] ?? "")),
  );
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(where.query ?? {})) {
    if (Array.isArray(value)) value.forEach((one) => query.append(name, one));
    else if (value !== undefined && value !== null && value !== "") query.set(name, String(value));
  }
  return query.size ? `${path}?${query}` : path;
}

async function readError(answer: Response, key: string | null): Promise<ApiError> {
  // Another tab may have signed in again meanwhile.
  if (answer.status === 401 && key !== null && key === sessionKey()) expireSession();
  const failure = readFailure(answer.status, await answer.text().catch(() => ""));
  report(failure.status, failure.code);
  return failure;
}

type AnswerListener = (status: number, code: string) => void;
const answerListeners = new Set<AnswerListener>();

/** Call `listener` with the status of each answer and the code of each error, status 0 for no answer; returns what ends that. */
export function onAnswer(listener: AnswerListener): () => void {
  answerListeners.add(listener);
  return () => void answerListeners.delete(listener);
}

function report(status: number, code: string): void {
  answerListeners.forEach((listener) => listener(status, code));
}

/** The error of an answer that is no success. */
export function readFailure(status: number, text: string): ApiError {
  try {
    const { error } = JSON.parse(text) as Schemas["ErrorAnswer"];
    return new ApiError(status, error.code, error.message, error.details);
  } catch {
    return new ApiError(status, "internal", `the cluster answered ${status}`);
  }
}

/** Every item of a list, page by page, `most` at most; `next` tells whether there are more. */
export async function collect<T>(
  load: (cursor: string | undefined) => Promise<{ items: T[]; next_cursor?: string | null }>,
  most = 500,
): Promise<{ items: T[]; next: boolean }> {
  const items: T[] = [];
  let cursor: string | undefined;
  do {
    const page = await load(cursor);
    items.push(...page.items);
    cursor = page.next_cursor ?? undefined;
  } while (cursor && items.length < most);
  return { items, next: cursor !== undefined };
}
