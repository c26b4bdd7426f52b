/** Triggers of webhooks as texts, in the form of the option --trigger. */

import type { Schemas } from "../../api/client";

export type Trigger = Schemas["TriggerAnswer"];
export type WrittenTrigger = Partial<Trigger> & Pick<Trigger, "type">;

const STATE_TYPES = new Set(["EXPERIMENT_STATE_CHANGE", "TRIAL_STATE_CHANGE", "ALARM"]);
const THRESHOLD = /^([^<>]+?)\s*([<>])\s*(\S+)$/;

/** Return a trigger as text. */
export function triggerText({ type, states, levels, metric, above, below, pattern }: Trigger): string {
  const limits = [...(above === null ? [] : [`${metric}>${above}`]), ...(below === null ? [] : [`${metric}<${below}`])];
  const values = [...states, ...levels, ...limits].join(",") || pattern;
  return values ? `${type}:${values}` : type;
}

/** Return the trigger of a text. Throw an Error with the reason for another form. */
export function parseTrigger(text: string): WrittenTrigger {
  const colon = text.indexOf(":");
  const type = (colon < 0 ? text : text.slice(0, colon)).trim().toUpperCase().replaceAll("-", "_");
  if (colon < 0) return { type };
  const values = text.slice(colon + 1);
  const items = values.split(",").map((item) => item.trim());
  if (STATE_TYPES.has(type)) {
    return { type, states: items.map((item) => type === "ALARM" ? item.toLowerCase() : item.toUpperCase()) };
  }
  if (type === "CUSTOM") return { type, levels: items.map((item) => item.toLowerCase()) };
  if (type === "TASK_LOG") return { type, pattern: values };
  if (type === "METRIC_THRESHOLD_EXCEEDED") return { type, ...parseLimits(items, text) };
  throw new Error(`The trigger ${text} has no form like CUSTOM:warn,error.`);
}

/** Return the metric and the limits of terms like `loss<0.1`. Throw an Error for another form. */
function parseLimits(items: string[], text: string): Partial<Trigger> {
  const limits: Partial<Trigger> = {};
  for (const item of items) {
    const [, metric, sign, number] = THRESHOLD.exec(item) ?? [];
    const value = Number(number);
    if (!metric || !Number.isFinite(value) || (limits.metric ?? metric) !== metric) {
      throw new Error(`The trigger ${text} has no form like METRIC_THRESHOLD_EXCEEDED:loss<0.1.`);
    }
    limits.metric = metric;
    if (sign === ">") limits.above = value;
    else limits.below = value;
  }
  return limits;
}
