/** The reports: the list, a report to read, and the editor. */

import { collect, get, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Heading } from "../../parts/heading";
import { Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, useAddress } from "../../shell/router";
import { EditReport, NewReport } from "./report_editor";
import { ReportView } from "./report_view";
import { SHARINGS } from "./rights";
import "./reports.css";

type Summary = Schemas["ReportSummary"];

export function ReportsView({ chosen }: { chosen: string }) {
  const isEdited = useAddress().parts[2] === "edit";
  if (!chosen) return <ReportList />;
  if (chosen === "new") return <NewReport />;
  if (!/^[1-9]\d{0,11}$/.test(chosen)) return <Empty>No report has the number {chosen}.</Empty>;
  return isEdited ? <EditReport id={Number(chosen)} /> : <ReportView id={Number(chosen)} />;
}

function ReportList() {
  const live = useLive("reports", (signal) => collect((cursor) => get("/api/v1/reports", { query: { limit: 500, cursor }, signal })), () => "resting");
  return (
    <>
      <Heading title="Reports" />
      <div class="tools"><a class="button" href={href("reports", "new")}>New report</a></div>
      <Shown live={live}>
        {({ items }) => items.length === 0
          ? <Empty>No reports yet. A report is a text with live charts, for your colleagues. Charts of other views have a button Report.</Empty>
          : <Table label="reports" rows={items} rowKey={({ id }) => id} initialOrder={{ by: "updated", descending: true }} columns={COLUMNS} />}
      </Shown>
    </>
  );
}

const COLUMNS: Column<Summary>[] = [
  { key: "title", title: "Title", show: ({ id, title }) => <a href={href("reports", id)}>{title}</a>, value: ({ title }) => title },
  { key: "user", title: "Owner", show: ({ user }) => user, value: ({ user }) => user },
  { key: "sharing", title: "Sharing", show: ({ sharing }) => <span title={SHARINGS[sharing]}>{sharing}</span>, value: ({ sharing }) => sharing },
  { key: "updated", title: "Changed", show: ({ updated_ms: ms }) => <Moment ms={ms} />, value: ({ updated_ms: ms }) => ms },
  { key: "by", title: "Changed by", show: ({ updated_by: by }) => by, value: ({ updated_by: by }) => by },
];
