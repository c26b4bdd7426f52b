/** A new experiment from an existing one or a trial, checked by the cluster as it is written. */

import { useRef, useState } from "preact/hooks";
import { get, send } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Heading } from "../../parts/heading";
import { useKeptDraft } from "../../parts/kept_draft";
import { Shown } from "../../parts/status";
import { href, setQuery, useRoute } from "../../shell/router";
import { CreateDialog } from "./create_dialog";
import { FieldsPart } from "./fields_part";
import { Findings } from "./findings";
import { forkTrialConfig, submittedConfig, type ForkOrigin } from "./fork";
import { NewCode, type SentCode } from "./new_code";
import { PreviewPart } from "./preview_part";
import { useCheck } from "./use_check";
import { toYaml } from "./yaml";

export function CreateView() {
  const { query } = useRoute();
  const experiment = Number(query.get("experiment")) || null;
  const trial = Number(query.get("trial")) || null;
  // Code that was sent is not chosen and sent again after a reload.
  const kept = useKeptDraft("code that was sent", "");
  const sent = kept.text ? (JSON.parse(kept.text) as SentCode) : null;
  const live = useLive(`origin ${experiment} ${trial}`, (signal) => loadOrigin(experiment, trial, signal), () => "still");
  return (
    <>
      <Heading title="New experiment" />
      {experiment || trial
        ? <Shown live={live}>{(origin) => origin && <Editor key={origin.about} origin={origin} />}</Shown>
        : sent ? <Editor key={sent.code} origin={sent} forget={() => kept.keep("")} />
        : <><NewCode onSent={(code) => kept.keep(JSON.stringify(code))} /><Chooser /></>}
    </>
  );
}

function Chooser() {
  const [id, setId] = useState("");
  return (
    <form class="form" onSubmit={(event) => { event.preventDefault(); setQuery({ experiment: id }); }}>
      <h2>Code of an experiment</h2>
      <p class="quiet">Start from the code and the configuration of an existing experiment.</p>
      <label>Experiment <input type="number" min="1" required value={id} onInput={(event) => setId(event.currentTarget.value)} /></label>
      <button class="primary">Use this code</button>
    </form>
  );
}

async function loadOrigin(experiment: number | null, trial: number | null, signal: AbortSignal): Promise<ForkOrigin | null> {
  if (trial) {
    const one = await get("/api/v1/trials/{trial_id}", { path: { trial_id: trial }, signal });
    const { whole, pace } = await loadOriginal(one.experiment_id, signal);
    const config = toYaml(forkTrialConfig(submittedConfig(whole), one.hparams));
    return { about: `trial ${trial} of experiment ${one.experiment_id}`, code: whole.code_sha256, config, original: whole.id!, pace };
  }
  if (!experiment) return null;
  const { whole, pace } = await loadOriginal(experiment, signal);
  return { about: `experiment ${experiment}`, code: whole.code_sha256, config: toYaml(submittedConfig(whole)), original: experiment, pace };
}

/** The original of a fork, and its measured pace, which a fork can do without. */
async function loadOriginal(id: number, signal: AbortSignal) {
  const path = { experiment_id: id };
  const [whole, pace] = await Promise.all([
    get("/api/v1/experiments/{experiment_id}", { path, signal }),
    get("/api/v1/experiments/{experiment_id}/pace", { path, signal }).catch(() => null),
  ]);
  return { whole, pace };
}

interface EditorProps {
  origin: ForkOrigin;
  /** Forgets the code, where it is of this machine. */
  forget?: () => void;
}

function Editor({ origin, forget }: EditorProps) {
  const { text, wasKept, keep, drop } = useKeptDraft(origin.about, origin.config);
  const paused = useRoute().query.get("paused") === "1";
  const [asks, setAsks] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const check = useCheck(text, origin.code);

  async function create(): Promise<void> {
    const body = { config: text, model_code: origin.code, paused, ...(origin.original && { forked_from: origin.original }) };
    const made = await send("post", "/api/v1/experiments", { body });
    drop();
    forget?.();
    location.hash = href("experiments", made.id!);
  }

  function goToLine(line: number): void {
    const lines = text.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    area.current!.focus();
    area.current!.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
  }

  return (
    <>
      <p>
        Code from {origin.about}.{" "}
        {forget && <button onClick={() => { drop(); forget(); }}>Choose other code</button>}
      </p>
      {wasKept && (
        <p class="tools" role="note">
          Your unsaved draft was restored. <button onClick={() => keep(origin.config)}>Discard draft</button>
        </p>
      )}
      {origin.config.includes("********") && (
        <p class="failure" role="note">Secrets are masked as ********. Enter them again, or use a template that contains them.</p>
      )}
      <div class="split">
        <label>Configuration (YAML)
          <textarea ref={area} class="code" spellcheck={false} value={text} onInput={(event) => keep(event.currentTarget.value)} />
        </label>
        <div>
          <FieldsPart text={text} onChange={keep} />
          <Findings check={check} goToLine={goToLine} />
        </div>
      </div>
      <div class="tools">
        <label><input type="checkbox" checked={paused} onChange={(event) => setQuery({ paused: event.currentTarget.checked ? "1" : null })} /> Start paused</label>
        <button class="primary" disabled={check.state !== "valid"} onClick={() => setAsks(true)}>Create</button>
      </div>
      {asks && <CreateDialog origin={origin} text={text} create={create} onClose={() => setAsks(false)} />}
      <PreviewPart config={text} pool={check.state === "valid" ? check.answer.resource_pool : null} pace={origin.pace ?? null} />
    </>
  );
}
