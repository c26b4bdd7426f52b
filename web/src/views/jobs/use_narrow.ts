/** Whether the window is as narrow as a phone's, which has no room for a table. */

import { useEffect, useState } from "preact/hooks";

export function useNarrow(): boolean {
  const query = matchMedia("(max-width: 600px)");
  const [isNarrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const onChange = () => setNarrow(query.matches);
    onChange();
    query.addEventListener("change", onChange);
    return () => query.removeEventListener("change", onChange);
  }, []);
  return isNarrow;
}
