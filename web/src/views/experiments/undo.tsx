/** A message about a change, which can be undone for ten seconds. */

import { useEffect, useState } from "preact/hooks";
import { messageOf } from "../../parts/format";

export interface Undoable {
  /** What was done, such as `Archived 3 experiments`. */
  text: string;
  undo: () => Promise<void>;
}

const SHOWN_MS = 10_000;

export function UndoMessage({ done, onClose }: { done: Undoable; onClose: () => void }) {
  const [error, setError] = useState("");
  const [isHeld, setHeld] = useState(false);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    // Whoever has the focus on the button needs no hurry.
    if (isHeld || isBusy || error) return undefined;
    const timer = setTimeout(onClose, SHOWN_MS);
    return () => clearTimeout(timer);
  }, [done, isHeld, isBusy, error]);

  async function undo(): Promise<void> {
    setBusy(true);
    try {
      await done.undo();
      onClose();
    } catch (failure) {
      setError(messageOf(failure));
      setBusy(false);
    }
  }

  return (
    <div class="undo" role="status" onFocusIn={() => setHeld(true)} onFocusOut={() => setHeld(false)}
      onMouseEnter={() => setHeld(true)} onMouseLeave={() => setHeld(false)}>
      <span>{done.text}</span>
      <button disabled={isBusy} onClick={undo}>Undo</button>
      {error && <span class="failure">{error}</span>}
    </div>
  );
}
