/** What the check found: each problem with its line, or what the experiment would be. */

import { useState } from "preact/hooks";
import type { Schemas } from "../../api/client";
import type { Check } from "./use_check";
import { toYaml } from "./yaml";
import "./create.css";

interface Props {
  check: Check;
  goToLine: (line: number) => void;
}

export function Findings({ check, goToLine }: Props) {
  return (
    <section aria-label="check" aria-live="polite">
      <h2>Check</h2>
      {check.state === "checking" && <p class="quiet">Checking …</p>}
      {check.state === "valid" && <Preview check={check} />}
      {check.state === "invalid" && (
        <>
          {check.details.length === 0 && <p class="failure">{check.error.message}</p>}
          <ul>
            {check.details.map((detail) => (
              <li key={`${detail.path} ${detail.message}`}>
                {detail.line && <button onClick={() => goToLine(detail.line!)}>line {detail.line}</button>}{" "}
                <code>{detail.path}</code> {detail.message}
                {detail.hint && <span class="quiet"> – {detail.hint}</span>}
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

function Preview({ check }: { check: Extract<Check, { state: "valid" }> }) {
  const { answer: experiment } = check;
  return (
    <>
      <p>The configuration is valid.</p>
      <dl class="facts">
        <dt>Search</dt><dd>{experiment.searcher} by {experiment.metric}</dd>
        <dt>Pool</dt><dd>{experiment.resource_pool}</dd>
      </dl>
      <Complete config={(experiment as Schemas["ExperimentWithConfig"]).config} />
      {experiment.warnings.map((warning) => <p key={warning} class="failure">{warning}</p>)}
    </>
  );
}

/** The configuration with every default. */
function Complete({ config }: { config?: Record<string, unknown> }) {
  const [isShown, setIsShown] = useState(false);
  if (!config) return null;
  return (
    <>
      <label><input type="checkbox" checked={isShown} onChange={(event) => setIsShown(event.currentTarget.checked)} /> Show defaults</label>
      {isShown && <pre class="complete" tabIndex={0} aria-label="configuration with defaults">{toYaml(config)}</pre>}
    </>
  );
}
