/** Views whose code comes when one of them is shown first: most visits end in the first view. */

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Failure, Loading } from "../parts/status";

/** A view of a module that is imported when it is shown; `load` names the module and the view. */
export function showLater<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let known: ComponentType<P> | undefined;
  return function Later(props: P) {
    const [, setLoaded] = useState(false);
    const [hasFailed, setFailed] = useState(false);
    useEffect(() => {
      if (known) return;
      load().then((view) => { known = view; setLoaded(true); }, () => setFailed(true));
    }, []);
    const View = known;
    if (View) return <View {...props} />;
    if (!hasFailed) return <Loading />;
    // Its files have other names after an upgrade, and a browser does not import what failed again.
    const error = new Error("This part of the page did not come: the cluster does not answer, or has a newer page.");
    return <Failure error={error} retry={() => location.reload()} />;
  };
}
