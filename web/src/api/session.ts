/** The page's half of the session: in this origin's storage, which no other port can read. */

const KEY = "detcloud.session-key";
const listeners = new Set<() => void>();

export function sessionKey(): string | null {
  return localStorage.getItem(KEY);
}

export function keepSession(key: string): void {
  localStorage.setItem(KEY, key);
  listeners.forEach((listener) => listener());
}

export function forgetSession(): void {
  localStorage.removeItem(KEY);
  listeners.forEach((listener) => listener());
}

/** Call `listener` when this tab or another signs in or out; returns what ends that. */
export function onSessionChange(listener: () => void): () => void {
  const onStorage = (event: StorageEvent) => event.key === KEY && listener();
  listeners.add(listener);
  window.addEventListener("storage", onStorage);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("storage", onStorage);
  };
}
