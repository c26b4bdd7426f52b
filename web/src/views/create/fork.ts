/** The configuration of a fork: an existing one without what it says by default. */

type Config = Record<string, unknown>;

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
