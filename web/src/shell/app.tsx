/** The page: who is signed in, the bar, and the view of the address. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get } from "../api/client";
import { onSessionChange, sessionKey } from "../api/session";
import { isOutage } from "../live/connection";
import { useLive } from "../live/use_live";
import { Empty, Failure } from "../parts/status";
import { ExperimentsView } from "../views/experiments/experiments_view";
import { ProjectsView } from "../views/projects/projects_view";
import { SignInView } from "../views/sign_in/sign_in_view";
import { Fence } from "./fence";
import { showLater } from "./later";
import { Navigation } from "./navigation";
import { Reconnecting } from "./reconnecting";
import { useRoute, viewOf, type Route } from "./router";
import { WhoContext } from "./who";

const AlarmsView = showLater(async () => (await import("../views/alarms/alarms_view")).AlarmsView);
const CommandView = showLater(async () => (await import("../views/commands/command_view")).CommandView);
const CommandsView = showLater(async () => (await import("../views/commands/commands_view")).CommandsView);
const CompareView = showLater(async () => (await import("../views/compare/compare_view")).CompareView);
const CreateView = showLater(async () => (await import("../views/create/create_view")).CreateView);
const HomeView = showLater(async () => (await import("../views/home/home_view")).HomeView);
const ExperimentView = showLater(async () => (await import("../views/experiment/experiment_view")).ExperimentView);
const JobsView = showLater(async () => (await import("../views/jobs/jobs_view")).JobsView);
const ModelView = showLater(async () => (await import("../views/models/model_view")).ModelView);
const ModelsView = showLater(async () => (await import("../views/models/models_view")).ModelsView);
const PoolsView = showLater(async () => (await import("../views/pools/pools_view")).PoolsView);
const ReportsView = showLater(async () => (await import("../views/reports/reports_view")).ReportsView);
const SchedulesView = showLater(async () => (await import("../views/schedules/schedules_view")).SchedulesView);
const TemplatesView = showLater(async () => (await import("../views/templates/templates_view")).TemplatesView);
const TokensView = showLater(async () => (await import("../views/tokens/tokens_view")).TokensView);
const UsageView = showLater(async () => (await import("../views/usage/usage_view")).UsageView);
const WebhooksView = showLater(async () => (await import("../views/webhooks/webhooks_view")).WebhooksView);
const TrialView = showLater(async () => (await import("../views/trial/trial_view")).TrialView);

export function App() {
  const route = useRoute();
  const [key, setKey] = useState(sessionKey());
  useEffect(() => onSessionChange(() => setKey(sessionKey())), []);
  const isSigningIn = route.parts[0] === "sign-in" || !key;
  return (
    <>
      <Reconnecting />
      {isSigningIn
        ? <SignInView code={route.parts[0] === "sign-in" ? (route.parts[1] ?? "") : ""} />
        : <SignedIn key={key} route={route} />}
    </>
  );
}

function SignedIn({ route }: { route: Route }) {
  const who = useLive("who", (signal) => get("/api/v1/whoami", { signal }), () => "still");
  const [first = "home"] = route.parts;
  // A view without a trace of the one before.
  const identity = viewOf(route);
  useFocusOnChange(identity);
  return (
    <WhoContext.Provider value={who.value}>
      {who.error && !isOutage(who.error) && <Failure error={who.error} retry={() => void who.refresh()} />}
      <Navigation who={who.value} current={first} />
      <main id="main" data-view={identity} tabIndex={-1}>
        <Fence key={identity}>{chooseView(first, route.parts[1] ?? "")}</Fence>
      </main>
    </WhoContext.Provider>
  );
}

/** Moves the focus into a new view, so that keyboards and screen readers go on there, not behind the bar. */
function useFocusOnChange(identity: string): void {
  const before = useRef(identity);
  // At once: a key that is pressed next may go to a field, and that keeps it.
  useLayoutEffect(() => {
    if (before.current === identity) return;
    before.current = identity;
    document.getElementById("main")?.focus({ preventScroll: true });
  }, [identity]);
}

function chooseView(first: string, second: string): ComponentChildren {
  const id = /^\d{1,12}$/.test(second) ? Number(second) : undefined;
  if (first === "home") return <HomeView />;
  if (first === "experiments") return id ? <ExperimentView id={id} /> : <ExperimentsView />;
  if (first === "projects") return <ProjectsView />;
  if (first === "trials" && id) return <TrialView id={id} />;
  if (first === "commands") return id ? <CommandView id={id} /> : <CommandsView />;
  if (first === "compare") return <CompareView />;
  if (first === "alarms") return <AlarmsView chosen={second} />;
  if (first === "jobs") return <JobsView />;
  if (first === "pools") return <PoolsView chosen={second} />;
  if (first === "models") return second ? <ModelView name={second} /> : <ModelsView />;
  if (first === "create") return <CreateView />;
  if (first === "reports") return <ReportsView chosen={second} />;
  if (first === "schedules") return <SchedulesView chosen={second} />;
  if (first === "templates") return <TemplatesView />;
  if (first === "tokens") return <TokensView />;
  if (first === "usage") return <UsageView />;
  if (first === "webhooks") return <WebhooksView chosen={second} />;
  return <Empty>No view exists at this address.</Empty>;
}
