/** Templates: parts of configurations that experiments are laid over. */

import { useState } from "preact/hooks";
import { ApiError, collect, get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action, Dialog, FormDialog } from "../../parts/dialog";
import { Heading } from "../../parts/heading";
import { dropBase, keepBase, keptBase, useKeptDraft } from "../../parts/kept_draft";
import { Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { Theirs } from "../../parts/theirs";
import { mayChange, useWho, type Who } from "../../shell/who";

type Template = Schemas["Template"];

export function TemplatesView() {
  const [edited, setEdited] = useState<Template | "new" | null>(null);
  const who = useWho();
  const live = useLive("templates", (signal) =>
    collect((cursor) => get("/api/v1/templates", { query: { limit: 50, cursor }, signal }), 1000), () => "still");
  const remove = async ({ name }: Template) => {
    await send("delete", "/api/v1/templates/{name}", { path: { name } });
    await live.refresh();
  };
  return (
    <>
      <Heading title="Templates" />
      <div class="tools"><button onClick={() => setEdited("new")}>New template</button></div>
      <Shown live={live}>
        {({ items, next }) => items.length === 0
          ? <Empty>No templates. An experiment's <code>template</code> completes its configuration.</Empty>
          : (
            <>
              <Table label="templates" rows={items} rowKey={({ name }) => name} columns={templateColumns(who, setEdited, remove)} />
              {next && <p class="quiet">The first {items.length} by name are shown; sorting is among these.</p>}
            </>
          )}
      </Shown>
      {edited && (
        <TemplateDialog mayChange={edited === "new" || mayChange(who, edited.user)} template={edited === "new" ? null : edited} onDone={live.refresh} onClose={() => setEdited(null)} />
      )}
    </>
  );
}

function templateColumns(who: Who | undefined, edit: (template: Template) => void, remove: (template: Template) => Promise<void>): Column<Template>[] {
  return [
    { key: "name", title: "Name", show: ({ name }) => name, value: ({ name }) => name },
    { key: "user", title: "Owner", show: ({ user }) => user, value: ({ user }) => user },
    { key: "updated", title: "Changed", show: (one) => <Moment ms={one.updated_ms} />, value: (one) => one.updated_ms },
    {
      key: "actions",
      title: "Actions",
      show: (template) => (
        <>
          <button aria-label={`open ${template.name}`} onClick={() => edit(template)}>Open</button>{" "}
          {mayChange(who, template.user) && (
            <Action label="Delete" question={`Delete the template ${template.name}? This cannot be undone.`} run={() => remove(template)} />
          )}
        </>
      ),
    },
  ];
}

interface DialogProps {
  template: Template | null;
  mayChange: boolean;
  onDone: () => Promise<void>;
  onClose: () => void;
}

function TemplateDialog({ template, mayChange, onDone, onClose }: DialogProps) {
  const [name, setName] = useState(template?.name ?? "");
  const draft = `template ${template?.name ?? ""}`;
  const { text: config, wasKept, keep, drop } = useKeptDraft(draft, template?.config ?? "");
  // What is stored as far as the writer knows: a text that was kept may have been begun from an older one.
  const [known, setKnown] = useState(template);
  const [theirs, setTheirs] = useState(() => (wasKept && template && keptBase(draft) !== String(template.updated_ms) ? template : null));
  const write = (text: string) => {
    keep(text);
    keepBase(draft, String(known?.updated_ms ?? 0));
  };
  const forget = () => {
    drop();
    dropBase(draft);
  };
  if (template && !mayChange) return <TemplateText template={template} onClose={onClose} />;
  const submit = async () => {
    const path = { name };
    try {
      await send("put", "/api/v1/templates/{name}", { path, body: { config, expected_updated_ms: known?.updated_ms ?? 0 } });
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== "conflict") throw error;
      const current = await get("/api/v1/templates/{name}", { path }).catch(() => null);
      setTheirs(current);
      setKnown(current);
      throw new Error(current ? `Another user has changed template ${name}. Saving replaces the newer text.` : `Template ${name} was deleted. Saving creates it again.`);
    }
    forget();
    await onDone();
  };
  const take = () => {
    forget();
    void onDone();
    onClose();
  };
  return (
    <FormDialog title={template ? `Template ${template.name}` : "New template"} action="Save" submit={submit} onClose={onClose}
      isChanged={config !== (template?.config ?? "") || name !== (template?.name ?? "")}>
      {wasKept && (
        <p class="quiet">
          Your unsaved draft was restored. <button type="button" onClick={() => keep(template?.config ?? "")}>Discard draft</button>
        </p>
      )}
      {!template && (
        <label>Name <input required pattern="[A-Za-z0-9._\-]{1,64}" value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
      )}
      <label>Configuration (YAML)
        <textarea class="code" spellcheck={false} required value={config} onInput={(event) => write(event.currentTarget.value)} />
      </label>
      {theirs && <Theirs name="template" text={theirs.config} take={take} />}
    </FormDialog>
  );
}

/** Somebody else's template, which others may use and read. */
function TemplateText({ template, onClose }: { template: Template; onClose: () => void }) {
  return (
    <Dialog title={`Template ${template.name}`} onClose={onClose}>
      <p class="quiet">Only {template.user} and admins can change or delete it.</p>
      <pre tabIndex={0}>{template.config}</pre>
      <div class="actions"><button onClick={onClose}>Close</button></div>
    </Dialog>
  );
}
