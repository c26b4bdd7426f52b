/** A window that changes a webhook. Only changed fields are sent. */

import { useState } from "preact/hooks";
import { send, type Schemas } from "../../api/client";
import { FormDialog } from "../../parts/dialog";
import { findChanges } from "../../parts/edit_dialog";
import { splitLabels } from "../../parts/labels";
import { parseTrigger, triggerText } from "./triggers";

type Webhook = Schemas["Webhook"];
type Changes = Schemas["WebhookChangeBody"];

const FORMATS = ["json", "slack", "teams", "discord", "pagerduty", "email", "github"] as const;
const FILTERS = [["workspace", "Workspace"], ["project", "Project"], ["user", "User"]] as const;

interface Draft {
  name: string;
  url: string;
  format: string;
  token: string;
  triggers: string;
  isSpecific: boolean;
  workspace: string;
  project: string;
  user: string;
  labels: string;
  experiments: string;
}

interface Props {
  webhook: Webhook;
  onDone: () => Promise<unknown>;
  onClose: () => void;
}

export function EditWebhook({ webhook, onDone, onClose }: Props) {
  const [first] = useState(() => draftOf(webhook));
  const [draft, setDraft] = useState(first);
  const write = (part: Partial<Draft>) => setDraft({ ...draft, ...part });
  const submit = async () => {
    const body = changesOf(findChanges(first, draft));
    await send("patch", "/api/v1/webhooks/{webhook_id}", { path: { webhook_id: webhook.id }, body });
    await onDone();
  };
  return (
    <FormDialog title="Edit webhook" action="Save" submit={submit} onClose={onClose}
      isChanged={Object.keys(findChanges(first, draft)).length > 0}>
      <label>Name <input class="wide" required value={draft.name} onInput={(event) => write({ name: event.currentTarget.value })} /></label>
      <label>URL <input class="wide" required value={draft.url} onInput={(event) => write({ url: event.currentTarget.value })} /></label>
      <label>Format{" "}
        <select value={draft.format} onChange={(event) => write({ format: event.currentTarget.value })}>
          {FORMATS.map((name) => <option key={name}>{name}</option>)}
        </select>
      </label>
      {draft.format === "github" && (
        <label>New token <input class="wide" type="password" autocomplete="off" value={draft.token}
          placeholder="The stored token stays without a new one." onInput={(event) => write({ token: event.currentTarget.value })} /></label>
      )}
      <label>Triggers, one per line <textarea class="code wide" rows={4} required spellcheck={false} value={draft.triggers}
        onInput={(event) => write({ triggers: event.currentTarget.value })} /></label>
      <label><input type="checkbox" checked={draft.isSpecific} onChange={(event) => write({ isSpecific: event.currentTarget.checked })} />{" "}
        Only experiments that name the webhook</label>
      {FILTERS.map(([key, title]) => (
        <label key={key}>{title} <input class="wide" value={draft[key]} onInput={(event) => write({ [key]: event.currentTarget.value })} /></label>
      ))}
      <label>Labels, one per line <textarea class="wide" rows={2} value={draft.labels} onInput={(event) => write({ labels: event.currentTarget.value })} /></label>
      <label>Experiments <input class="wide" pattern="[0-9, ]*" title="ids, separated by commas" value={draft.experiments}
        onInput={(event) => write({ experiments: event.currentTarget.value })} /></label>
    </FormDialog>
  );
}

function draftOf(webhook: Webhook): Draft {
  return {
    name: webhook.name,
    url: webhook.url,
    format: webhook.format,
    token: "",
    triggers: webhook.triggers.map(triggerText).join("\n"),
    isSpecific: webhook.mode === "SPECIFIC",
    workspace: webhook.workspace ?? "",
    project: webhook.project ?? "",
    user: webhook.filtered_user ?? "",
    labels: webhook.labels.join("\n"),
    experiments: webhook.experiments.join(", "),
  };
}

/** Return the changed fields in the form of the API. Throw an Error for a wrong trigger. */
function changesOf(changed: Partial<Draft>): Changes {
  const { name, url, format, token, triggers, isSpecific, labels, experiments, user, ...filters } = changed;
  const body: Record<string, unknown> = { name, url, format, token: token?.trim() || undefined };
  for (const [key, text] of Object.entries(filters)) body[key] = text.trim() || null;
  if (user !== undefined) body.filtered_user = user.trim() || null;
  if (triggers !== undefined) body.triggers = lines(triggers).map(parseTrigger);
  if (isSpecific !== undefined) body.mode = isSpecific ? "SPECIFIC" : "WORKSPACE";
  if (labels !== undefined) body.labels = splitLabels(labels);
  if (experiments !== undefined) body.experiments = experiments.split(/[ ,]+/).filter(Boolean).map(Number);
  return JSON.parse(JSON.stringify(body)) as Changes;
}

function lines(text: string): string[] {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}
