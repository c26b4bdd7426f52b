/** Views whose code comes when one of them is shown first: most visits end in the first view. */

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { isElsewhere } from "../api/place";
import { onReturn, probe } from "../live/connection";
import { Failure, Loading } from "../parts/status";

/** A view of a module that is imported when it is shown; `load` names the module and the view. */
export function showLater<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let known: ComponentType<P> | undefined;
  return function Later(props: P) {
    const [, setLoaded] = useState(false);
    const [hasFailed, setFailed] = useState(false);
    useEffect(() => {
      if (known) return;
      load().then((view) => { known = view; setLoaded(true); }, () => { setFailed(true); void probe(); });
    }, []);
    const View = known;
    if (View) return <View {...props} />;
    return hasFailed ? <Missing /> : <Loading />;
  };
}

/**
 * What stands in place of a view whose code did not come. Its files have other names after an
 * upgrade, and a browser does not import what failed again, so that only a reload helps.
 */
function Missing() {
  const [isGone, setGone] = useState(false);
  // A late answer to a request from before the outage also counts as a return.
  useEffect(() => onReturn(() => void reloadIfAnswered()), []);

  async function reload(): Promise<void> {
    setGone(false);
    if (!(await reloadIfAnswered())) setGone(true);
  }

  const reason = isGone
    ? "The cluster still does not answer. The page stays as it is; reload it once the cluster is back."
    : "This view could not be loaded: the cluster does not answer, or has a newer version of the page. Reload the page; what you have written in it is kept.";
  return <Failure error={new Error(reason)} action="Reload the page" retry={() => void reload()} />;
}

/** Reload the page, unless the cluster does not answer: a reload would then lose the page. Returns whether it reloads. */
async function reloadIfAnswered(): Promise<boolean> {
  // On a page of another origin, the policy allows requests to the API alone.
  if (!isElsewhere() && !(await hasAnswer())) return false;
  location.reload();
  return true;
}

async function hasAnswer(): Promise<boolean> {
  try {
    await fetch(location.pathname, { cache: "no-store" });
    return true;
  } catch {
    return false;
  }
}
