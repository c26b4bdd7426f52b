/** The names of answers that several views show. */

import type { Schemas } from "./client";

export type ExperimentWhole = Schemas["ExperimentWithConfig"];
export type TrialWhole = Schemas["TrialWithEnvironment"];
export type Job = Schemas["JobView"];
