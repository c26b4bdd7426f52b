/** The buttons of states, by which lists of commands are narrowed; they stay in the address. */

import { setQuery, useRoute } from "../../shell/router";

/** Of several states each is shown; of none, all are. */
export function StateButtons({ states }: { states: string[] }) {
  const chosen = (useRoute().query.get("state") ?? "").split(",").filter(Boolean);
  const toggle = (state: string) =>
    setQuery({ state: (chosen.includes(state) ? chosen.filter((one) => one !== state) : [...chosen, state]).join(",") });
  return (
    <span class="states" role="group" aria-label="State">
      {/* Those too that an address alone names. */}
      {[...new Set([...states, ...chosen])].map((state) => (
        <button key={state} type="button" aria-pressed={chosen.includes(state)} onClick={() => toggle(state)}>{state}</button>
      ))}
    </span>
  );
}
