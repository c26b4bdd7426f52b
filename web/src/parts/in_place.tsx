/** A text that is edited where it stands. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { messageOf } from "./format";
import { isDraftKept, useKeptDraft } from "./kept_draft";

interface Props {
  /** What it is, in a word: `notes`. */
  name: string;
  /** Names what it is of, in the whole page; what is written is kept under it over a reload. */
  of: string;
  value: string;
  save: (text: string) => Promise<unknown>;
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
  // What was read when it opened, and how that is saved: the view may read another meanwhile.
  const [opened, setOpened] = useState<Pick<Props, "value" | "save"> | null>(() => (isDraftKept(draft) ? props : null));
  const button = useRef<HTMLButtonElement>(null);
  const wasOpen = useRef(false);
  // A user of the keyboard goes on where they began.
  useEffect(() => {
    if (wasOpen.current && !opened) button.current?.focus();
    wasOpen.current = opened !== null;
  }, [opened]);
  if (!mayEdit) return <div class="in-place">{children}</div>;
  if (opened) return <Editor {...props} {...opened} draft={draft} current={value} onClose={() => setOpened(null)} />;
  return (
    <div class="in-place">
      {children}
      <button ref={button} class="edit" aria-label={value ? `Edit ${name}` : undefined} title={`Edit ${name}`}
        onClick={() => setOpened(props)}>
        <svg width="12" height="12" viewBox="0 0 12 12" aria-hidden="true"><path d="M1 11l.7-3L8.5 1.2l2.3 2.3L4 10.300z" /></svg>
        {!value && ` Add ${name}`}
      </button>
    </div>
  );
}

interface EditorProps extends Props {
  draft: string;
  /** What it is by now. */
  current: string;
  onClose: () => void;
}

function Editor({ name, value, current, save, rows, hint, isCode, isRequired, draft, onClose }: EditorProps) {
  const { text, keep, drop } = useKeptDraft(draft, value);
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [warned, setWarned] = useState(false);
  const field = useRef<HTMLInputElement & HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);

  function close(): void {
    drop();
    onClose();
  }

  async function submit(event?: Event): Promise<void> {
    event?.preventDefault();
    if (text === value) return close();
    setBusy(true);
    setError("");
    try {
      await save(text);
      close();
    } catch (failure) {
      setError(messageOf(failure));
      setBusy(false);
    }
  }

  function onKey(event: KeyboardEvent): void {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !isBusy) void submit(event);
    if (event.key !== "Escape") return;
    if (text === value || warned) close();
    else setWarned(true);
  }

  const common = {
    ref: field,
    "aria-label": name,
    class: isCode ? "code wide" : "wide",
    value: text,
    spellcheck: !isCode,
    onInput: (event: Event) => keep((event.currentTarget as HTMLTextAreaElement).value),
    onKeyDown: onKey,
  };
  return (
    <form class="in-place" aria-label={`edit ${name}`} onSubmit={(event) => void submit(event)}>
      {rows ? <textarea {...common} rows={rows} /> : <input {...common} required={isRequired ?? false} />}
      {hint && <p class="quiet">{hint}</p>}
      {current !== value && <p class="wait" role="status">Somebody has changed this meanwhile, to: {current || "nothing"}</p>}
      {warned && text !== value && <p class="wait" role="status">This is not saved yet. Escape once more leaves it as it was.</p>}
      {error && <p class="failure" role="alert">{error}</p>}
      <div class="tools">
        <button class="primary" disabled={isBusy} title={rows ? "Ctrl Enter" : "Enter"}>Save</button>
        <button type="button" onClick={close}>Cancel</button>
      </div>
    </form>
  );
}
