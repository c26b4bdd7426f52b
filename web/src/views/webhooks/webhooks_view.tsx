/** The webhooks of the cluster; one webhook with its deliveries. */

import { useState } from "preact/hooks";
import { collect, get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { Heading } from "../../parts/heading";
import { Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";
import { EditWebhook } from "./edit_webhook";
import { triggerText } from "./triggers";

type Webhook = Schemas["Webhook"];
type Delivery = Schemas["Delivery"];

const CLASSES: Record<string, string> = { delivered: "good", waiting: "wait", failed: "bad" };

export function WebhooksView({ chosen }: { chosen: string }) {
  return chosen ? <WebhookPage id={Number(chosen)} /> : <WebhookList />;
}

function WebhookList() {
  const live = useLive("webhooks", (signal) =>
    collect((cursor) => get("/api/v1/webhooks", { query: { limit: 500, cursor }, signal }), 500), () => "still");
  const remove = async ({ id }: Webhook) => {
    await send("delete", "/api/v1/webhooks/{webhook_id}", { path: { webhook_id: id } });
    await live.refresh();
  };
  return (
    <>
      <Heading title="Webhooks" />
      <p class="quiet">
        Webhooks announce events to other services. Create webhooks with <code>detcloud webhook create</code>, which shows
        the secret of a webhook once.
      </p>
      <Shown live={live}>
        {({ items }) => items.length === 0
          ? <Empty>No webhooks yet.</Empty>
          : <Table label="webhooks" rows={items} rowKey={({ id }) => id} columns={webhookColumns(remove)} />}
      </Shown>
    </>
  );
}

function webhookColumns(remove: (webhook: Webhook) => Promise<void>): Column<Webhook>[] {
  return [
    { key: "name", title: "Name", show: ({ id, name }) => <a href={href("webhooks", String(id))}>{name}</a>, value: ({ name }) => name },
    { key: "format", title: "Format", show: ({ format }) => format, value: ({ format }) => format },
    { key: "triggers", title: "Triggers", show: ({ triggers }) => triggers.map(triggerText).join(", ") },
    { key: "url", title: "URL", show: ({ url }) => url },
    { key: "user", title: "Owner", show: ({ user }) => user, value: ({ user }) => user },
    { key: "created", title: "Created", show: (webhook) => <Moment ms={webhook.created_ms} />, value: (webhook) => webhook.created_ms },
    {
      key: "actions",
      title: "Actions",
      show: (webhook) => (
        <Action label="Delete" question={`Delete webhook ${webhook.name}? Waiting deliveries are dropped.`} run={() => remove(webhook)} />
      ),
    },
  ];
}

function WebhookPage({ id }: { id: number }) {
  const path = { webhook_id: id };
  const who = useWho();
  const [edits, setEdits] = useState(false);
  const webhook = useLive(`webhook ${id}`, (signal) => get("/api/v1/webhooks/{webhook_id}", { path, signal }), () => "still");
  const live = useLive(
    `deliveries ${id}`,
    (signal) => get("/api/v1/webhooks/{webhook_id}/deliveries", { path, query: { limit: 100 }, signal }),
    () => "resting",
  );
  const test = async () => {
    await send("post", "/api/v1/webhooks/{webhook_id}/test", { path });
    await live.refresh();
  };
  const retry = async ({ id: delivery }: Delivery) => {
    await send("post", "/api/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/retry", { path: { ...path, delivery_id: delivery } });
    await live.refresh();
  };
  return (
    <>
      <p class="crumbs"><a href={href("webhooks")}>Webhooks</a> / {id}</p>
      <Shown live={webhook}>
        {(shown) => (
          <>
            <Heading title={`Webhook ${shown.name}`} />
            <p>{shown.triggers.map(triggerText).join(", ")} to {shown.url}</p>
            {shown.changed_ms !== null && <p class="quiet">Changed by {shown.changed_by} <Moment ms={shown.changed_ms} /></p>}
            {mayChange(who, shown.user) && <><button onClick={() => setEdits(true)}>Edit</button>{" "}</>}
            <Action label="Send a test" question={`Send a test event to webhook ${shown.name}?`} run={test} />
            {edits && <EditWebhook webhook={shown} onDone={webhook.refresh} onClose={() => setEdits(false)} />}
          </>
        )}
      </Shown>
      <h2>Deliveries</h2>
      <Shown live={live}>
        {({ items }) => items.length === 0
          ? <Empty>No deliveries yet.</Empty>
          : <Table label="deliveries" rows={items} rowKey={({ id: delivery }) => delivery} columns={deliveryColumns(retry)} />}
      </Shown>
    </>
  );
}

function deliveryColumns(retry: (delivery: Delivery) => Promise<void>): Column<Delivery>[] {
  return [
    { key: "time", title: "Event", show: ({ time_ms: ms }) => <Moment ms={ms} />, value: ({ time_ms: ms }) => ms },
    { key: "title", title: "Title", show: ({ title }) => title },
    { key: "state", title: "State", show: ({ state }) => <span class={`badge ${CLASSES[state] ?? ""}`}>{state}</span>, value: ({ state }) => state },
    { key: "attempts", title: "Attempts", isNumber: true, show: ({ attempts }) => attempts, value: ({ attempts }) => attempts },
    { key: "next", title: "Next attempt", show: ({ next_ms: ms }) => ms === null ? "–" : <Moment ms={ms} /> },
    { key: "error", title: "Error", show: ({ error }) => error || "–" },
    {
      key: "actions",
      title: "Actions",
      show: (delivery) => <Action label="Retry" question={`Deliver "${delivery.title}" again?`} run={() => retry(delivery)} />,
    },
  ];
}
