/** The editor of reports: the text on one side, and what readers will see on the other. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { messageOf } from "../../parts/format";
import { Heading } from "../../parts/heading";
import { dropBase, isDraftKept, keepBase, keptBase, useKeptDraft } from "../../parts/kept_draft";
import { Empty, Shown } from "../../parts/status";
import { Theirs } from "../../parts/theirs";
import { href } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";
import { KINDS, fencedChart, type Kind } from "./chart_block";
import { ReportText } from "./report_text";
import { SHARINGS, mayWrite, type Sharing } from "./rights";

type Report = Schemas["Report"];
type Content = Pick<Report, "title" | "text" | "sharing">;

const BYTES_MAX = 64 * 1024;
// Of the typing, before charts are drawn again.
const PAUSE_MS = 400;
const ROUTE = "/api/v1/reports/{report_id}";

export function NewReport() {
  const save = async (content: Content) => (await send("post", "/api/v1/reports", { body: content })).id;
  return <Editor draft="new report" first={{ title: "", text: "", sharing: "private" }} save={save} mayShare back={href("reports")} />;
}

export function EditReport({ id }: { id: number }) {
  const live = useLive(`edited report ${id}`, (signal) => get(ROUTE, { path: { report_id: id }, signal }), () => "still");
  const who = useWho();
  return (
    <Shown live={live}>
      {(report) => who && (mayWrite(who, report)
        ? <Existing report={report} mayShare={mayChange(who, report.user)} />
        : <Empty>Only {report.user} and admins can change this report.</Empty>)}
    </Shown>
  );
}

function Existing({ report, mayShare }: { report: Report; mayShare: boolean }) {
  const path = { report_id: report.id };
  const draft = `report ${report.id}`;
  // A text that was kept may have been begun from an older revision.
  const [known, setKnown] = useState({ ...report, revision: isDraftKept(draft) ? Number(keptBase(draft) ?? report.revision) : report.revision });
  const [theirs, setTheirs] = useState<Report | null>(known.revision === report.revision ? null : report);
  const save = async (content: Content) => {
    const revision = theirs?.revision ?? known.revision;
    try {
      await send("put", ROUTE, { path, body: { ...content, revision } });
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== "conflict") throw error;
      const current = await get(ROUTE, { path });
      setTheirs(current);
      throw new Error(`${current.updated_by} has changed the report meanwhile. Compare the texts below. Saving again replaces the newer text.`);
    }
    return report.id;
  };
  const take = () => {
    setKnown(theirs!);
    setTheirs(null);
  };
  return <Editor key={known.revision} draft={draft} first={known} base={String(known.revision)} save={save} mayShare={mayShare} theirs={theirs} take={take} back={href("reports", report.id)} />;
}

interface EditorProps {
  /** The name under which what is written is kept. */
  draft: string;
  first: Content;
  /** The revision that the text began from. */
  base?: string;
  /** Stores the content and returns the report's id. */
  save: (content: Content) => Promise<number>;
  /** Whether this user may change who sees the report. */
  mayShare: boolean;
  /** The address without saving. */
  back: string;
  theirs?: Report | null;
  take?: () => void;
}

function Editor({ draft, first, base = "0", save, mayShare, back, theirs, take }: EditorProps) {
  const [begun] = useState(JSON.stringify({ title: first.title, text: first.text, sharing: first.sharing }));
  const { text: kept, wasKept, keep, drop } = useKeptDraft(draft, begun);
  const content = JSON.parse(kept) as Content;
  const [shown, show] = useLater(content.text);
  const [kind, setKind] = useState<Kind>("curves");
  const area = useRef<HTMLTextAreaElement>(null);
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const bytes = new TextEncoder().encode(content.text).length;
  // Latest, for charts of the preview that change the text.
  const latest = useRef(content);
  latest.current = content;

  function write(part: Partial<Content>): void {
    latest.current = { ...latest.current, ...part };
    keep(JSON.stringify(latest.current));
    keepBase(draft, base);
  }
  function forget(): void {
    drop();
    dropBase(draft);
  }
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      const id = await save({ ...content, title: content.title.trim() });
      forget();
      location.hash = href("reports", id);
    } catch (failure) {
      setError(messageOf(failure));
      setBusy(false);
    }
  }
  function insert(): void {
    const { text } = latest.current;
    const place = area.current?.selectionEnd ?? text.length;
    const [before, after] = [text.slice(0, place).trimEnd(), text.slice(place).trimStart()];
    write({ text: `${before}${before && "\n\n"}${fencedChart(blankChart(kind, text))}\n\n${after}` });
  }
  // A setting of a chart changes the text that the preview shows.
  function change(text: string): void {
    if (latest.current.text !== shown) return;
    write({ text });
    show(text);
  }
  return (
    <>
      <Heading title={content.title.trim() || "New report"} />
      <form class="report-editor" onSubmit={(event) => void submit(event)}>
        <div class="tools">
          <label>Title <input required maxLength={200} size={40} value={content.title} onInput={(event) => write({ title: event.currentTarget.value })} /></label>
          <label>Sharing{" "}
            <select value={content.sharing} disabled={!mayShare} onChange={(event) => write({ sharing: event.currentTarget.value as Sharing })}>
              {Object.entries(SHARINGS).map(([word, meaning]) => <option key={word} value={word}>{word}: {meaning}</option>)}
            </select>
          </label>
          <label>Chart{" "}
            <select value={kind} onChange={(event) => setKind(event.currentTarget.value as Kind)}>
              {Object.entries(KINDS).map(([one, { title }]) => <option key={one} value={one}>{title}</option>)}
            </select>
          </label>
          <button type="button" onClick={insert}>Insert chart</button>
          <button class="primary" disabled={isBusy || bytes > BYTES_MAX}>Save</button>
          <button type="button" onClick={() => { forget(); location.hash = back; }}>Discard</button>
          {wasKept && <span class="quiet">Your unsaved draft was restored.</span>}
        </div>
        {bytes > BYTES_MAX && <p class="failure" role="alert">The text has {bytes} bytes; a report has at most {BYTES_MAX}.</p>}
        {error && <p class="failure" role="alert">{error}</p>}
        {theirs && <Theirs name="report" text={theirs.text} take={() => { forget(); take?.(); }} />}
      </form>
      <div class="split report-sides">
        <textarea ref={area} class="code" aria-label="text of the report" spellcheck value={content.text} onInput={(event) => write({ text: event.currentTarget.value })} />
        <section class="report" aria-label="preview">
          {shown ? <ReportText text={shown} onChange={change} /> : <p class="quiet">The preview is empty. Write Markdown, and insert charts.</p>}
        </section>
      </div>
    </>
  );
}

/** The text once it has not changed for a while, and what shows a text at once. */
function useLater(text: string): [string, (text: string) => void] {
  const [later, setLater] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setLater(text), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return [later, setLater];
}

/** A chart of the experiment that the text named last, or of this user's newest experiments. */
function blankChart(kind: Kind, text: string) {
  const [last] = [...text.matchAll(/^experiments: \[?(\d{1,12})/gm)].slice(-1);
  const settings: Record<string, string> = kind === "scatter" ? { hyperparameter: "lr" } : {};
  return { kind, title: "", experiments: last ? [Number(last[1])] : [], filter: last ? "" : "user:me", settings };
}
