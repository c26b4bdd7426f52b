/** The list of commands, notebooks and shells: narrowed, chosen from, live. */

import { useState } from "preact/hooks";
import { collect, get, type Schemas } from "../../api/client";
import { motionOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { ArchivedField, ClearButton, WordFields } from "../../parts/filter_fields";
import { durationText, shortText } from "../../parts/format";
import { Heading } from "../../parts/heading";
import { Badge, Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, setQuery, useRoute } from "../../shell/router";
import { BulkActions } from "../experiments/bulk_actions";
import { StateButtons } from "../experiments/filters";
import { exitCodeText } from "./exit_code";

export type Command = Schemas["Experiment"];

const PAGE = 50;
const FILTERS = ["kind", "name", "label", "user", "state", "archived"] as const;
const STATES = ["running", "queued", "finished", "canceled", "failed"];
// Of the API's kinds, those that are listed here.
const ALL = "command,notebook,shell";

const COLUMNS: Column<Command>[] = [
  { key: "id", title: "Id", isNumber: true, show: ({ id }) => <a href={href("commands", id!)}>{id}</a> },
  { key: "name", title: "Name", show: ({ id, name }) => <a href={href("commands", id!)} title={name.slice(0, 1000)}>{name}</a> },
  { key: "program", title: "Program", show: ({ run }) => (run?.program ? <code title={run.program}>{shortText(run.program, 32)}</code> : "–") },
  { key: "kind", title: "Kind", show: ({ kind }) => kind },
  { key: "state", title: "State", show: ({ condition, message }) => <span title={message.slice(0, 1000)}><Badge state={condition} /></span> },
  { key: "code", title: "Exit code", isNumber: true, show: ({ run }) => exitCodeText(run) },
  { key: "user", title: "User", show: ({ user }) => <a href={`${href("commands")}?${new URLSearchParams({ user })}`}>{user}</a> },
  { key: "pool", title: "Pool", show: (one) => <a href={href("pools", one.resource_pool)}>{one.resource_pool}</a> },
  { key: "machine", title: "Machine", show: ({ run }) => run?.agent_id ?? "–" },
  { key: "created", title: "Created", show: (one) => <Moment ms={one.created_ms} isBrief /> },
  { key: "took", title: "Took", isNumber: true, show: (one) => (one.ended_ms == null ? "–" : durationText(one.ended_ms - one.created_ms)) },
];

export function CommandsView() {
  const { query } = useRoute();
  const [chosen, setChosen] = useState<Set<string | number>>(new Set());
  const most = Math.max(PAGE, Number(query.get("most")) || PAGE);
  const wanted = { ...Object.fromEntries(FILTERS.map((name) => [name, query.get(name)])), kind: query.get("kind") || ALL };
  const isFiltered = FILTERS.some((name) => query.get(name));
  const live = useLive(
    `commands ${JSON.stringify([wanted, most])}`,
    (signal) => collect((cursor) => get("/api/v1/experiments", { query: { ...wanted, limit: Math.min(most, 500), cursor }, signal }), most),
    ({ items }) => (items.some((one) => motionOf(one) === "moving") ? "moving" : "resting"),
  );

  async function afterAction(done: number[]): Promise<void> {
    setChosen(new Set([...chosen].filter((id) => !done.includes(Number(id)))));
    await live.refresh();
  }

  return (
    <>
      <Heading title="Commands and notebooks" />
      <CommandFilters />
      <Shown live={live}>
        {({ items, next }) => items.length === 0 ? (
          <Empty>
            {isFiltered
              ? "No commands or notebooks match these filters."
              : <>No commands or notebooks yet. <code>detcloud command run PROGRAM</code> runs a program on a machine of the cluster, <code>detcloud notebook start</code> JupyterLab, and <code>detcloud shell start</code> opens a shell.</>}
          </Empty>
        ) : (
          <>
            <BulkActions of="command" chosen={items.filter(({ id }) => chosen.has(id!))} onDone={afterAction} />
            <Table label="commands" rows={items} rowKey={({ id }) => id!} chosen={chosen} onChoose={setChosen} columns={COLUMNS} />
            <div class="tools">
              <span class="quiet">{items.length}{next ? " newest" : ""} shown, newest first</span>
              {next && <button onClick={() => setQuery({ most: String(most * 2) })}>Show more</button>}
            </div>
          </>
        )}
      </Shown>
    </>
  );
}

function CommandFilters() {
  const { query } = useRoute();
  return (
    <form class="tools" role="search" onSubmit={(event) => event.preventDefault()}>
      <WordFields />
      <label>Kind{" "}
        <select value={query.get("kind") ?? ""} onChange={(event) => setQuery({ kind: event.currentTarget.value })}>
          <option value="">all</option>
          <option value="command">commands</option>
          <option value="notebook">notebooks</option>
          <option value="shell">shells</option>
        </select>
      </label>
      <StateButtons states={STATES} />
      <ArchivedField />
      <ClearButton names={FILTERS} />
    </form>
  );
}
