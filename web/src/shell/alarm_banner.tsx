/** The banner in the page's header while alarms are raised. */

import { useEffect, useState } from "preact/hooks";
import { get, type Schemas } from "../api/client";
import { useLive } from "../live/use_live";
import { countText } from "../parts/format";
import { href } from "./router";

// The cluster checks its alarms every five minutes.
const PAUSE_MS = 120_000;
const NAMED_MAX = 3;

/** The raised alarms; none until the cluster has answered, and from a cluster that lists none. */
function useRaisedAlarms(): Schemas["AlarmView"][] {
  const [round, setRound] = useState(0);
  useEffect(() => {
    // A hidden page asks again when it is shown.
    const timer = setInterval(() => { if (!document.hidden) setRound((count) => count + 1); }, PAUSE_MS);
    return () => clearInterval(timer);
  }, []);
  const { value } = useLive("raised alarms", (signal) => get("/api/v1/alarms", { signal }), () => "still", String(round));
  return value?.items ?? [];
}

export function AlarmBanner() {
  const alarms = useRaisedAlarms();
  return <div class="alarm-banner" role="status">{alarms.length > 0 && <Raised alarms={alarms} />}</div>;
}

function Raised({ alarms }: { alarms: Schemas["AlarmView"][] }) {
  const named = alarms.slice(0, NAMED_MAX).map(({ alarm, pool }) => (pool ? `${alarm} (${pool})` : alarm));
  const rest = alarms.length - named.length;
  return (
    <a href={href("alarms")}>
      <strong>{countText(alarms.length, "alarm")} raised:</strong> {named.join(", ")}{rest > 0 && ` and ${rest} more`}
    </a>
  );
}
