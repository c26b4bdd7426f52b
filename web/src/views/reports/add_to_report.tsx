/** A window that adds a chart of another view to the end of a report, with the settings that it has there. */

import { useRef, useState } from "preact/hooks";
import { ApiError, collect, get, send, type Schemas } from "../../api/client";
import type { ChartSource } from "../../curves/chart_source";
import { useLive } from "../../live/use_live";
import { Dialog, FormDialog } from "../../parts/dialog";
import { Shown } from "../../parts/status";
import { href, useRoute } from "../../shell/router";
import { useWho } from "../../shell/who";
import { KINDS, fencedChart, readChart, chartText, type ChartSpec } from "./chart_block";
import { mayWrite } from "./rights";

interface Props {
  source: ChartSource;
  onClose: () => void;
}

const NEW = "new";
const ROUTE = "/api/v1/reports/{report_id}";

export function AddToReport({ source, onClose }: Props) {
  const spec = specOf(source, useRoute().query);
  const who = useWho();
  const [added, setAdded] = useState<{ id: number; title: string } | null>(null);
  const live = useLive("reports to add to", (signal) => collect((cursor) => get("/api/v1/reports", { query: { limit: 500, cursor }, signal })), () => "still");
  const [problem] = readChart(chartText(spec), 1).problems;
  if (problem) {
    return (
      <Dialog title="Add to a report" onClose={onClose}>
        <p>A report cannot show this chart: {problem.text}.</p>
        <div class="actions"><button onClick={onClose}>Close</button></div>
      </Dialog>
    );
  }
  if (added) {
    return (
      <Dialog title="Add to a report" onClose={onClose}>
        <p role="status">The chart is at the end of <a href={href("reports", added.id)}>{added.title}</a>.</p>
        <div class="actions"><button onClick={onClose}>Close</button></div>
      </Dialog>
    );
  }
  return <Shown live={live}>{({ items }) => <ChoiceDialog reports={items.filter((report) => mayWrite(who, report))} spec={spec} onAdded={setAdded} onClose={onClose} />}</Shown>;
}

interface ChoiceProps {
  reports: Schemas["ReportSummary"][];
  spec: ChartSpec;
  onAdded: (report: { id: number; title: string }) => void;
  onClose: () => void;
}

function ChoiceDialog({ reports, spec, onAdded, onClose }: ChoiceProps) {
  const [chosen, setChosen] = useState(String(reports[0]?.id ?? NEW));
  const [title, setTitle] = useState("");
  const isDone = useRef(false);
  const submit = async () => {
    onAdded(chosen === NEW ? await createWith(title.trim(), spec) : await appendTo(Number(chosen), spec));
    isDone.current = true;
  };
  return (
    <FormDialog title="Add to a report" action="Add" submit={submit} onClose={() => isDone.current || onClose()}>
      <label>Report{" "}
        <select value={chosen} onChange={(event) => setChosen(event.currentTarget.value)}>
          {reports.map(({ id, title: name }) => <option key={id} value={id}>{name}</option>)}
          <option value={NEW}>a new report</option>
        </select>
      </label>
      {chosen === NEW && <label>Title <input class="wide" required maxLength={200} value={title} onInput={(event) => setTitle(event.currentTarget.value)} /></label>}
      <details>
        <summary>The block in the report</summary>
        <pre tabIndex={0}>{fencedChart(spec)}</pre>
      </details>
    </FormDialog>
  );
}

async function createWith(title: string, spec: ChartSpec) {
  return send("post", "/api/v1/reports", { body: { title, text: `${fencedChart(spec)}\n`, sharing: "private" } });
}

/** Add the block to the end of the text that the report has now. */
async function appendTo(id: number, spec: ChartSpec) {
  const path = { report_id: id };
  for (let tries = 0; ; tries += 1) {
    const { title, text, sharing, revision } = await get(ROUTE, { path });
    const longer = `${text.trimEnd()}\n\n${fencedChart(spec)}\n`.trimStart();
    try {
      return await send("put", ROUTE, { path, body: { title, text: longer, sharing, revision } });
    } catch (error) {
      // Somebody wrote meanwhile: the end of the new text is as good.
      if (tries >= 3 || !(error instanceof ApiError) || error.code !== "conflict") throw error;
    }
  }
}

/** The block of a chart, with the settings of the view that a report keeps. */
function specOf({ kind, experiments, settings = {} }: ChartSource, query: URLSearchParams): ChartSpec {
  const kept = Object.keys(KINDS[kind].options).flatMap((name) => {
    const setting = settings[name] ?? query.get(name);
    return setting ? [[name, setting]] : [];
  });
  return { kind, title: "", experiments, filter: "", settings: Object.fromEntries(kept) };
}
