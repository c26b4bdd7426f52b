/** Code from this machine: a folder or an archive that is chosen or dropped, and sent. */

import { useEffect, useState } from "preact/hooks";
import { bytesText, messageOf } from "../../parts/format";
import { configCandidates, describeNoted, findFault, readDrop, readInput, totalBytes, type ChosenCode } from "./chosen_files";
import { packFiles, uploadArchive } from "./upload_code";
import "./new_code.css";

/** Code that the cluster has, and what the configuration begins with. */
export interface SentCode {
  about: string;
  code: string;
  config: string;
}

const EMPTY_CONFIG = `name: my experiment
entrypoint: python3 train.py
hyperparameters: {}
searcher:
  name: single
  metric: loss
  max_length: {batches: 100}
`;

type Chosen = ChosenCode | File;

export function NewCode({ onSent }: { onSent: (sent: SentCode) => void }) {
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const [error, setError] = useState("");
  const choose = async (read: () => Promise<Chosen>) => {
    setError("");
    try {
      setChosen(await read());
    } catch (failure) {
      setError(messageOf(failure));
    }
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    // What was dropped is there in the event alone.
    const { items, files } = event.dataTransfer!;
    void choose(async () => (await readDrop(items)) ?? checkedArchive(files));
  };
  return (
    <section aria-label="code from this machine" class="drop" onDragOver={(event) => event.preventDefault()} onDrop={drop}>
      <h2>Code from this machine</h2>
      <p class="quiet">Drop a folder or a .tar.gz file here, or choose one. Files named in .detignore are left out.</p>
      <p>
        <label>Folder{" "}
          <input type="file" ref={(input) => input?.setAttribute("webkitdirectory", "")}
            onChange={({ currentTarget: { files } }) => files?.length && void choose(() => readInput(files))} />
        </label>{" "}
        <label>Archive{" "}
          <input type="file" accept=".tar.gz,.tgz,application/gzip"
            onChange={({ currentTarget: { files } }) => files?.length && void choose(async () => checkedArchive(files))} />
        </label>
      </p>
      {error && <p class="failure" role="alert">{error}</p>}
      {chosen && <Sending key={keyOf(chosen)} chosen={chosen} onSent={onSent} />}
    </section>
  );
}

function Sending({ chosen, onSent }: { chosen: Chosen; onSent: (sent: SentCode) => void }) {
  const [config, setConfig] = useState("");
  const [progress, setProgress] = useState<{ sent: number; size: number } | null>(null);
  const [error, setError] = useState("");
  const [control] = useState(() => new AbortController());
  const files = chosen instanceof File ? [] : chosen.files;
  const candidates = configCandidates(files);
  const fault = chosen instanceof File ? "" : findFault(files);
  const about = chosen instanceof File
    ? `the archive ${chosen.name} (${bytesText(chosen.size)})`
    : `the folder ${chosen.name}: ${files.length} files, ${bytesText(totalBytes(files))}`;
  useEffect(() => () => control.abort(), [control]);

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    setError("");
    setProgress({ sent: 0, size: 0 });
    try {
      const archive = chosen instanceof File ? chosen : await packFiles(files);
      setProgress({ sent: 0, size: archive.size });
      const code = await uploadArchive(archive, (sent) => setProgress({ sent, size: archive.size }), control.signal);
      const named = candidates.find(({ path }) => path === (config || candidates[0]?.path));
      onSent({ about, code, config: named ? await named.file.text() : EMPTY_CONFIG });
    } catch (failure) {
      if (control.signal.aborted) return;
      setError(messageOf(failure));
      setProgress(null);
    }
  }

  return (
    <form onSubmit={(event) => void submit(event)}>
      <p>This is {about}{!(chosen instanceof File) && chosen.leftOut > 0 && `; ${chosen.leftOut} are left out`}.</p>
      {!(chosen instanceof File) && chosen.noted.length > 0 && <p role="note">{describeNoted(chosen.noted)}</p>}
      {fault && <p class="failure" role="alert">{fault}</p>}
      {candidates.length > 0 && (
        <label>Configuration{" "}
          <select value={config || candidates[0]!.path} onChange={(event) => setConfig(event.currentTarget.value)}>
            {candidates.map(({ path }) => <option key={path}>{path}</option>)}
          </select>
        </label>
      )}
      {error && <p class="failure" role="alert">{error}</p>}
      {progress && <Progress {...progress} />}
      <div class="tools"><button class="primary" disabled={fault !== "" || progress !== null}>Upload the code</button></div>
    </form>
  );
}

function Progress({ sent, size }: { sent: number; size: number }) {
  if (size === 0) return <p role="status">Packing …</p>;
  return (
    <p role="status">
      <progress max={size} value={sent} aria-label="sent" /> {bytesText(sent)} of {bytesText(size)}
    </p>
  );
}

function checkedArchive(files: FileList): File {
  const [file] = files;
  if (!file || files.length > 1) throw new Error("drop a single folder or archive");
  if (!/\.(tar\.gz|tgz)$/i.test(file.name)) throw new Error(`${file.name} is not a .tar.gz file; drop the folder itself, or pack it with tar`);
  return file;
}

function keyOf(chosen: Chosen): string {
  return chosen instanceof File ? `${chosen.name} ${chosen.lastModified} ${chosen.size}` : `${chosen.name} ${totalBytes(chosen.files)} ${chosen.files.length}`;
}
