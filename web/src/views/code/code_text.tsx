/** One file of the model code: its text with numbered lines, each with an address. */

import { useEffect, useMemo, useRef } from "preact/hooks";
import { get, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { CopyButton } from "../../parts/copy_button";
import { NumberField } from "../../parts/filter_fields";
import { bytesText } from "../../parts/format";
import { saveText } from "../../parts/save_file";
import { Empty, Shown } from "../../parts/status";
import { href, useRoute } from "../../shell/router";
import { baseName, shownPart, splitLines } from "./code_tree";

const LINES_SHOWN = 2000;

/** The address of a file, or of a line or part of it. */
export function codeLink(id: number, path: string, place: Record<string, string> = {}): string {
  return `${href("experiments", id, "code")}?${new URLSearchParams({ path, ...place })}`;
}

interface Props {
  id: number;
  path: string;
}

export function CodeText({ id, path }: Props) {
  const live = useLive(
    `code ${id} ${path}`,
    (signal) => get("/api/v1/experiments/{experiment_id}/code/file", { path: { experiment_id: id }, query: { path }, signal }),
    () => "still",
  );
  return (
    <section aria-label={path}>
      <h2>{path}</h2>
      <Shown live={live}>
        {(file) => (
          <>
            <p class="quiet">{bytesText(file.size)}{file.is_executable && ", executable"}, SHA-256 <code title={file.sha256}>{file.sha256.slice(0, 12)}</code></p>
            {file.text === null
              ? <Empty>This file is not text. To download it: <code>detcloud experiment download-model-def {id}</code></Empty>
              : <TextView id={id} file={file} text={file.text} />}
          </>
        )}
      </Shown>
    </section>
  );
}

interface TextProps {
  id: number;
  file: Schemas["CodeTextAnswer"];
  text: string;
}

function TextView({ id, file, text }: TextProps) {
  const lines = useMemo(() => splitLines(text), [text]);
  const { query } = useRoute();
  const line = query.get("line");
  const part = shownPart(lines.length, LINES_SHOWN, query.get("part"), line);
  const find = query.get("find");
  const partLink = (n: number) => codeLink(id, file.path, { part: String(n + 1), ...(find && { find }) });
  const first = part * LINES_SHOWN;
  const shown = lines.slice(first, first + LINES_SHOWN);
  return (
    <>
      <div class="tools">
        <CopyButton text={text} />
        {!file.is_truncated && <button onClick={() => saveText(baseName(file.path), [text])}>Download</button>}
        <NumberField name="line" title="Line" min={1} max={lines.length} />
        {lines.length > LINES_SHOWN && (
          <span>
            {part > 0 && <a href={partLink(part - 1)}>earlier</a>}{" "}
            <span class="quiet">lines {first + 1} to {first + shown.length} of {lines.length}</span>{" "}
            {first + shown.length < lines.length && <a href={partLink(part + 1)}>later</a>}
          </span>
        )}
      </div>
      {file.is_truncated && (
        <p class="quiet">Only the first 1 MiB is shown. To download the whole file: <code>detcloud experiment download-model-def {id}</code></p>
      )}
      {lines.length === 0 ? <Empty>This file is empty.</Empty> : <Lines id={id} path={file.path} lines={shown} first={first} marked={line} />}
    </>
  );
}

interface LinesProps {
  id: number;
  path: string;
  lines: string[];
  /** How many lines are before these. */
  first: number;
  marked: string | null;
}

function Lines({ id, path, lines, first, marked }: LinesProps) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => box.current!.querySelector(".marked")?.scrollIntoView({ block: "center" }), [path, first, marked]);
  return (
    <div class="log code-lines" ref={box} tabIndex={0} role="region" aria-label={`lines of ${path}`}>
      {lines.map((text, n) => {
        const line = String(first + n + 1);
        return (
          <div key={line} class={line === marked ? "line marked" : "line"}>
            <a href={codeLink(id, path, { line })} tabIndex={-1} aria-label={`line ${line}`}>{line}</a>
            <code>{text}{"\n"}</code>
          </div>
        );
      })}
    </div>
  );
}
