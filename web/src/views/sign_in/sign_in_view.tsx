/** Sign-in: by a link's code, at once, or by a token that is typed. */

import { useEffect, useState } from "preact/hooks";
import { send } from "../../api/client";
import { isElsewhere } from "../../api/place";
import { keepSession, takePlace } from "../../api/session";
import { messageOf } from "../../parts/format";
import { Heading } from "../../parts/heading";

export function SignInView({ code }: { code: string }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(code !== "");

  async function open(body: { code: string } | { token: string }): Promise<void> {
    setBusy(true);
    setError("");
    try {
      keepSession((await send("post", "/api/v1/sessions", { body })).key);
    } catch (failure) {
      setError(messageOf(failure));
    }
    setBusy(false);
  }

  useEffect(() => {
    if (!code) return;
    // The code is gone from the address, and from the browser's history, before it is used.
    history.replaceState(null, "", takePlace());
    void open({ code }).finally(() => window.dispatchEvent(new HashChangeEvent("hashchange")));
  }, [code]);

  const command = isElsewhere()
    ? `detcloud open --page ${location.origin}${location.pathname}`
    : "detcloud open";

  function submit(event: Event): void {
    event.preventDefault();
    void open({ token: token.trim() });
  }

  return (
    <main id="main">
      <Heading title="Sign in to detcloud" />
      {error && <p class="failure" role="alert">{error}</p>}
      {code && busy ? <p role="status">Signing in …</p> : (
        <form class="form" onSubmit={submit}>
          <p>
            On the machine where you use the command line, <code>{command}</code> signs you in.
            Or give a token, as <code>detcloud token create</code> prints it:
          </p>
          <label>Token{" "}
            <input type="password" autocomplete="off" required value={token}
              onInput={(event) => setToken(event.currentTarget.value)} />
          </label>
          <button class="primary" disabled={busy}>Sign in</button>
        </form>
      )}
    </main>
  );
}
