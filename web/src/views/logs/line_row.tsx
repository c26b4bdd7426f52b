/** A row of a log: a line, or a line for each rank. */

import type { ComponentChildren } from "preact";
import { curveColour } from "../../curves/palette";
import { timeText } from "../../parts/format";
import { href } from "../../shell/router";
import { shownText, type LogLine } from "./log_line";
import type { Row, ShownLine } from "./log_rows";

const LEVELS: Record<string, string> = { TRACE: "faint", DEBUG: "faint", WARNING: "wait", ERROR: "bad", CRITICAL: "bad" };
const OWN = "[detcloud] ";
const FILE = /^(\s*)(File ".*", line \d+)(.*)$/;

export interface RowForm {
  /** Whether the time stands before each line. */
  hasTimes: boolean;
  /** Whether the rank stands before each line. */
  hasRanks: boolean;
  /** The address of a line. */
  linkOf: (line: LogLine) => string;
  /** The key of the line that the address names. */
  marked: string | null;
  onFold: (key: string) => void;
}

export function drawRow(row: Row, form: RowForm): ComponentChildren {
  const [only] = row.cells;
  if (row.cells.length === 1 && only) return <LineText key={row.key} shown={only} form={form} />;
  return (
    <div class="log-cells" key={row.key} data-key={row.key} role="presentation">
      {row.cells.map((cell, place) => <div key={place}>{cell && <LineText shown={cell} form={form} />}</div>)}
    </div>
  );
}

function LineText({ shown: { key, line, traceback, folded, canFold }, form }: { shown: ShownLine; form: RowForm }) {
  const text = shownText(line.text);
  const part = traceback ? `traceback ${traceback.part}` : text.startsWith(OWN) ? "own" : "";
  return (
    <div class={`line ${LEVELS[line.level ?? ""] ?? ""} ${part} ${key === form.marked ? "marked" : ""}`} data-key={key}>
      <LineLink line={line} form={form} />{" "}
      {canFold && (
        <button type="button" class="fold" aria-expanded={folded === 0} onClick={() => form.onFold(key)}
          aria-label={`traceback at offset ${line.offset}`}>{folded ? `+${folded}` : "–"}</button>
      )}
      {traceback?.part === "frame" ? <Frame text={text} /> : text}
    </div>
  );
}

function LineLink({ line, form }: { line: LogLine; form: RowForm }) {
  const { trial_id: trial, time_ms: time, rank } = line;
  const words = [
    form.hasTimes && (time === null ? "--:--:--" : timeText(time)),
    form.hasRanks && `[${rank}]`,
  ].filter(Boolean).join(" ");
  const title = time === null ? "link to this line" : new Date(time).toISOString();
  return (
    <>
      {trial !== undefined && <a class="trial" href={href("trials", trial)} style={{ borderColor: trialColour(trial) }}>trial {trial}</a>}
      {trial !== undefined && " "}
      <a href={form.linkOf(line)} title={title}>{words || "#"}</a>
    </>
  );
}

/** The colour of a trial, which is the same in all views of a log. */
function trialColour(trial: number): string {
  return `light-dark(${curveColour(trial)}, ${curveColour(trial, true)})`;
}

function Frame({ text }: { text: string }) {
  const found = FILE.exec(text);
  if (!found) return <>{text}</>;
  return <>{found[1]}<span class="file">{found[2]}</span>{found[3]}</>;
}
