/** The configuration of a fork: the submitted one, or an existing one without empty values. */

import type { Schemas } from "../../api/client";
import type { SentCode } from "./new_code";

type Config = Record<string, unknown>;

/** Code that the cluster has, of an experiment that may be forked. */
export interface ForkOrigin extends SentCode {
  /** The experiment that is forked; none for code of this machine. */
  original?: number;
  /** The pace of the original; null if it is not known. */
  pace?: Schemas["Pace"] | null;
}

interface Submitted {
  config: Config;
  /** The values that were set; empty for an answer of an older cluster. */
  submitted_config?: Config;
}

/** The configuration as it was submitted, or from an older cluster the whole one without empty values. */
export function submittedConfig({ config, submitted_config: submitted }: Submitted): Config {
  return submitted && Object.keys(submitted).length > 0 ? submitted : forkConfig(config);
}

/** The configuration without empty and absent values, which say nothing to a reader. */
export function forkConfig(config: Config): Config {
  return Object.fromEntries(Object.entries(config).filter(([, value]) => !isNothing(value)));
}

/** The configuration of an experiment of one trial with these hyperparameters. */
export function forkTrialConfig(config: Config, hparams: Config): Config {
  const searcher = (config["searcher"] ?? {}) as Config;
  const kept = ["metric", "smaller_is_better", "max_length", "max_steps", "time_metric"];
  const single = kept.filter((name) => !isNothing(searcher[name])).map((name) => [name, searcher[name]]);
  return {
    ...forkConfig(config),
    searcher: { name: "single", ...Object.fromEntries(single) },
    hyperparameters: hparams,
  };
}

function isNothing(value: unknown): boolean {
  if (value === null || value === undefined || value === "") return true;
  return typeof value === "object" && Object.keys(value).length === 0;
}
