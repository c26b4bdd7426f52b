/** The choice of what curves are drawn over: in the address, and as one has it until one chooses again. */

import { useContext, useEffect } from "preact/hooks";
import { SettingsContext, useRoute, useSetQuery } from "../shell/router";
import { X_TITLES, X_UNITS, readUnit, type XUnit } from "./x_axis";

const KEY = "detcloud.x-unit";

/** The unit of the address. One that was chosen before is put there, so that the link shows the same to others. */
export function useXUnit(offered: readonly XUnit[]): XUnit {
  const text = useRoute().query.get("x");
  const setQuery = useSetQuery();
  // A report looks the same for all its readers.
  const kept = useContext(SettingsContext) ? null : localStorage.getItem(KEY);
  const missing = text === null && kept !== null && offered.some((unit) => unit === kept) ? kept : null;
  useEffect(() => {
    if (missing) setQuery({ x: missing });
  }, [missing]);
  return readUnit(text ?? missing, offered);
}

export function XChoice({ offered, unit }: { offered: readonly XUnit[]; unit: XUnit }) {
  const setQuery = useSetQuery();
  const isOwn = useContext(SettingsContext) !== null;
  function choose(next: string): void {
    if (!isOwn && next === "batches") localStorage.removeItem(KEY);
    else if (!isOwn) localStorage.setItem(KEY, next);
    setQuery({ x: next === "batches" ? null : next });
  }
  return (
    <label>Over{" "}
      <select value={unit} onChange={(event) => choose(event.currentTarget.value)}>
        {X_UNITS.filter((one) => offered.includes(one)).map((one) => (
          <option key={one} value={one}>{one === "batches" ? "batches (steps)" : X_TITLES[one]}</option>
        ))}
      </select>
    </label>
  );
}
