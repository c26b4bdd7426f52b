/** A report as its readers see it, and its export. */

import { useRef, useState } from "preact/hooks";
import { get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { messageOf } from "../../parts/format";
import { Heading } from "../../parts/heading";
import { Moment, Shown } from "../../parts/status";
import { href, useAddress } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";
import { saveReport } from "./export_report";
import { AllDrawn } from "./report_chart";
import { ReportText } from "./report_text";
import { SHARINGS, mayWrite } from "./rights";

type Report = Schemas["Report"];

export function ReportView({ id }: { id: number }) {
  const live = useLive(`report ${id}`, (signal) => get("/api/v1/reports/{report_id}", { path: { report_id: id }, signal }), () => "resting");
  return (
    <>
      <p class="crumbs"><a href={href("reports")}>Reports</a> / report {id}</p>
      <Shown live={live}>{(report) => <Whole report={report} />}</Shown>
    </>
  );
}

function Whole({ report }: { report: Report }) {
  const { id, title, user, sharing, updated_ms: updated, updated_by: by, text } = report;
  const who = useWho();
  // The page scrolls to the chart of a link, which may be far below.
  const isLinked = useAddress().query.has("chart");
  const article = useRef<HTMLElement>(null);
  const [isExported, setExported] = useState(false);
  const [error, setError] = useState("");
  const remove = async () => {
    await send("delete", "/api/v1/reports/{report_id}", { path: { report_id: id } });
    location.hash = href("reports");
  };
  async function exportNow(): Promise<void> {
    setError("");
    setExported(true);
    try {
      await saveReport(report, article.current!);
    } catch (failure) {
      setError(messageOf(failure));
    } finally {
      setExported(false);
    }
  }
  return (
    <>
      <Heading title={title} />
      <p class="quiet">By {user}, changed <Moment ms={updated} />{by !== user && ` by ${by}`}; {sharingWords(sharing, user === who?.user)}</p>
      <div class="tools" role="group" aria-label="tools of the report">
        {mayWrite(who, report) && <a class="button" href={href("reports", id, "edit")}>Edit</a>}
        <button disabled={isExported} onClick={() => void exportNow()}>{isExported ? "Drawing all charts …" : "Export as HTML"}</button>
        {mayChange(who, user) && <Action label="Delete" question={`Delete the report ${title}? This cannot be undone.`} run={remove} />}
      </div>
      {error && <p class="failure" role="alert">{error}</p>}
      <article class="report" ref={article} aria-label={title}>
        <AllDrawn.Provider value={isExported || isLinked}><ReportText text={text} /></AllDrawn.Provider>
      </article>
    </>
  );
}

function sharingWords(sharing: Report["sharing"], isOwn: boolean): string {
  return sharing === "private" && !isOwn ? "only the owner and admins can read it" : SHARINGS[sharing];
}
