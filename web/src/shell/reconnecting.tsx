/** The bar of an outage: since when the cluster has not answered, and what starts it again. */

import { useEffect, useState } from "preact/hooks";
import { currentConnection, isLocal, onConnectionChange, watchConnection } from "../live/connection";
import { Moment } from "../parts/status";

export function Reconnecting() {
  const [{ lostMs }, setConnection] = useState(currentConnection());
  useEffect(() => {
    const end = onConnectionChange(setConnection);
    const endWatch = watchConnection();
    return () => {
      end();
      endWatch();
    };
  }, []);
  return (
    <div class="outage" role="status">
      {lostMs !== null && (
        <p>
          <strong>Reconnecting …</strong> The cluster does not answer, since <Moment ms={lostMs} />. The page continues
          by itself when the cluster answers.{isLocal() && <> <code>detcloud up</code> starts a local cluster.</>}
        </p>
      )}
    </div>
  );
}
