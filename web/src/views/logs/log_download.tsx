/** A whole log, or the lines that the view is narrowed to, as a file. */

import { useEffect, useState } from "preact/hooks";
import { get } from "../../api/client";
import { bytesText, messageOf } from "../../parts/format";
import { saveText } from "../../parts/save_file";
import { isNarrowed as isAnyWanted, type Wanted } from "./log_settings";

const PIECE_BYTES = 1024 * 1024;
const PIECE_LINES = 500;
// Of what the browser is to keep, in characters; it moves large blobs to the disk.
const TEXT_MAX = 2 * 1024 * 1024 * 1024;
// Texts are gathered up to so many characters, then they leave the page's memory as a blob.
const GATHERED_MAX = 4 * 1024 * 1024;

interface Props {
  /** The name of the file, without its ending. */
  name: string;
  /** The command that prints a log which is too long for the page. */
  command: string;
  isNarrowed: boolean;
  /** Reads the pieces of the file. */
  read: (signal: AbortSignal) => AsyncIterable<string>;
}

export function LogDownload({ name, command, isNarrowed, read }: Props) {
  const [control, setControl] = useState<AbortController | null>(null);
  const [told, setTold] = useState("");
  useEffect(() => () => control?.abort(), [control]);

  async function download(): Promise<void> {
    const started = new AbortController();
    setControl(started);
    setTold("Reading …");
    try {
      const blobs: Blob[] = [];
      let pieces: string[] = [];
      let [size, gathered] = [0, 0];
      for await (const piece of read(started.signal)) {
        pieces.push(piece);
        size += piece.length;
        gathered += piece.length;
        if (gathered > GATHERED_MAX) {
          blobs.push(new Blob(pieces));
          [pieces, gathered] = [[], 0];
        }
        if (size > TEXT_MAX) throw new Error(`the log is too long for the page; use ${command}`);
        setTold(`Reading … ${bytesText(size)}`);
      }
      saveText(`${name}${isNarrowed ? "-part" : ""}.log`, [...blobs, ...pieces]);
      setTold(`Saved ${bytesText(size)}`);
    } catch (error) {
      if (!started.signal.aborted) setTold(`Not saved: ${messageOf(error)}`);
    }
    setControl(null);
  }

  return (
    <>
      {control
        ? <button type="button" onClick={() => { control.abort(); setTold("Not saved."); }}>Stop</button>
        : <button type="button" onClick={() => void download()}>{isNarrowed ? "Download these lines" : "Download"}</button>}
      <span class="quiet" role="status">{told}</span>
    </>
  );
}

/** The log of a trial as a file, or the lines that the view is narrowed to. */
export function TrialDownload({ id, wanted }: { id: number; wanted: Wanted }) {
  const isNarrowed = isAnyWanted(wanted);
  return (
    <LogDownload name={`trial-${id}`} command={`detcloud trial logs ${id}`} isNarrowed={isNarrowed}
      read={(signal) => (isNarrowed ? readLines(id, wanted, signal) : readWhole(id, signal))} />
  );
}

/** The pieces of the log from its beginning to its present end. */
async function* readWhole(id: number, signal: AbortSignal): AsyncGenerator<string> {
  let after = 0;
  for (;;) {
    const { text, next } = await get("/api/v1/trials/{trial_id}/logs", { path: { trial_id: id }, query: { after, limit_bytes: PIECE_BYTES }, signal });
    if (next === after) return;
    yield text;
    after = next;
  }
}

async function* readLines(id: number, wanted: Wanted, signal: AbortSignal): AsyncGenerator<string> {
  let after: string | undefined;
  for (;;) {
    const query = { ...wanted, after, limit: PIECE_LINES };
    const { items, next_cursor: next } = await get("/api/v1/trials/{trial_id}/logs/lines", { path: { trial_id: id }, query, signal });
    yield items.map((line) => `${line.text}\n`).join("");
    if (!next || next === after) return;
    after = next;
  }
}
