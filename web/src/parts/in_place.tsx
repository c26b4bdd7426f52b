/** A text that is edited where it stands. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../api/client";
import { messageOf } from "./format";
import { dropBase, isDraftKept, keepBase, keptBase, useKeptDraft } from "./kept_draft";
import { Theirs } from "./theirs";

interface Props {
  /** What it is, in a word: `notes`. */
  name: string;
  /** Names what it is of, in the whole page; what is written is kept under it over a reload. */
  of: string;
  value: string;
  save: (text: string) => Promise<unknown>;
  /** Reads it again, after a refusal because somebody has changed it; resolves when that is shown. */
  reload: () => Promise<void>;
  /** How it looks while it is not edited. */
  children?: ComponentChildren;
  /** The height of a text of several lines; without it the text is one line. */
  rows?: number;
  hint?: string;
  isCode?: boolean;
  isRequired?: boolean;
  mayEdit?: boolean;
}

export function InPlace(props: Props) {
  const { name, of, value, children, mayEdit = true } = props;
  const draft = `${of} ${name}`;
  // The text that the writing began from: the view may read another one meanwhile, and so may a reload.
  const [base, setBase] = useState<string | null>(() => (isDraftKept(draft) ? keptBase(draft) ?? value : null));
  const button = useRef<HTMLButtonElement>(null);
  const isOpen = base !== null;
  const wasOpen = useRef(false);
  // A user of the keyboard goes on where they began.
  useLayoutEffect(() => {
    if (wasOpen.current && !isOpen) button.current?.focus();
    wasOpen.current = isOpen;
  }, [isOpen]);
  if (!mayEdit) return <div class="in-place">{children}</div>;
  if (isOpen) return <Editor {...props} draft={draft} base={base} onClose={() => setBase(null)} />;
  return (
    <div class="in-place">
      {children}
      <button ref={button} class="edit" aria-label={value ? `Edit ${name}` : undefined} title={`Edit ${name}`}
        onClick={() => setBase(value)}>
        <svg width="12" height="12" viewBox="0 0 12 12" aria-hidden="true"><path d="M1 11l.7-3L8.5 1.2l2.3 2.3L4 10.300z" /></svg>
        {!value && ` Add ${name}`}
      </button>
    </div>
  );
}

interface EditorProps extends Props {
  draft: string;
  base: string;
  onClose: () => void;
}

function Editor(props: EditorProps) {
  const { name, value, rows, hint, isCode, isRequired, draft, base, onClose } = props;
  const latest = useRef(props);
  latest.current = props;
  const { text, keep, drop } = useKeptDraft(draft, base);
  // The text of the others that the writer has seen, and replaces by saving.
  const [seen, setSeen] = useState(base);
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [warned, setWarned] = useState(false);
  const field = useRef<HTMLInputElement & HTMLTextAreaElement>(null);
  // Before the next key: an effect after the paint would lose what is typed at once.
  useLayoutEffect(() => field.current?.focus(), []);
  const isConflict = value !== seen;

  function write(next: string): void {
    keep(next);
    keepBase(draft, seen);
  }

  function close(): void {
    drop();
    dropBase(draft);
    onClose();
  }

  async function submit(event?: Event): Promise<void> {
    event?.preventDefault();
    if (text === value) return close();
    setBusy(true);
    setError("");
    setSeen(value);
    try {
      await saveOver(value);
      close();
    } catch (failure) {
      // What the others wrote is told by the form itself.
      if (latest.current.value === value) setError(messageOf(failure));
      setBusy(false);
    }
  }

  /** Save the text in place of `former`, also where something else of the same thing was changed. */
  async function saveOver(former: string): Promise<void> {
    try {
      await latest.current.save(text);
    } catch (failure) {
      if (!(failure instanceof ApiError) || failure.code !== "conflict") throw failure;
      await latest.current.reload();
      // The view is drawn with what was read.
      await new Promise((resolve) => setTimeout(resolve));
      if (latest.current.value !== former) throw failure;
      await latest.current.save(text);
    }
  }

  function onKey(event: KeyboardEvent): void {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !isBusy) void submit(event);
    if (event.key !== "Escape") return;
    // A window that this is in stays open.
    event.preventDefault();
    event.stopPropagation();
    if (text === base || warned) close();
    else setWarned(true);
  }

  const common = {
    ref: field,
    "aria-label": name,
    class: isCode ? "code wide" : "wide",
    value: text,
    spellcheck: !isCode,
    onInput: (event: Event) => write((event.currentTarget as HTMLTextAreaElement).value),
    onKeyDown: onKey,
  };
  const own = rows ? <textarea {...common} rows={rows} /> : <input {...common} required={isRequired ?? false} />;
  return (
    <form class="in-place" aria-label={`edit ${name}`} onSubmit={(event) => void submit(event)}>
      <div class={isConflict ? "split" : ""}>
        <div>{own}</div>
        {isConflict && <Theirs name={name} text={value} take={close} />}
      </div>
      {hint && <p class="quiet">{hint}</p>}
      {warned && text !== base && <p class="wait" role="status">You have unsaved changes. Press Escape again to discard them.</p>}
      {error && <p class="failure" role="alert">{error}</p>}
      <div class="tools">
        <button class="primary" disabled={isBusy} title={rows ? "Ctrl Enter" : "Enter"}>{isConflict ? "Overwrite" : "Save"}</button>
        <button type="button" onClick={close}>Cancel</button>
      </div>
    </form>
  );
}
