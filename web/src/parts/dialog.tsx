/** Windows above the page: the browser's own, which keep the keyboard inside and end with Escape. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { messageOf } from "./format";

interface Props {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  /** Whether something was written that is lost when it closes: Escape asks for a second one first. */
  isChanged?: boolean;
}

export function Dialog({ title, onClose, children, isChanged = false }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const [warned, setWarned] = useState(false);
  // At once: a key that is pressed next is already for this window.
  useLayoutEffect(() => element.current?.showModal(), []);
  function onCancel(event: Event): void {
    // Of a list that is open in the window, say, and not of the window.
    if (event.target !== element.current || !isChanged || warned) return;
    event.preventDefault();
    setWarned(true);
  }
  return (
    <dialog ref={element} aria-label={title} onClose={onClose} onCancel={onCancel}>
      <h2>{title}</h2>
      {children}
      {warned && isChanged && <p class="wait" role="status">You have unsaved changes. Press Escape again to close without saving.</p>}
    </dialog>
  );
}

interface FormProps extends Props {
  action: string;
  danger?: boolean;
  submit: () => Promise<unknown>;
}

/** A window that does something: it ends when that was done, and says why if it was refused. */
export function FormDialog({ title, onClose, children, action, danger, submit, isChanged = false }: FormProps) {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  async function run(event: Event): Promise<void> {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      await submit();
      onClose();
    } catch (failure) {
      setError(messageOf(failure));
      setBusy(false);
    }
  }
  return (
    <Dialog title={title} onClose={onClose} isChanged={isChanged}>
      <form onSubmit={run}>
        {children}
        {error && <p class="failure" role="alert">{error}</p>}
        <div class="actions">
          <button type="button" onClick={onClose}>Cancel</button>
          <button class={danger ? "danger" : "primary"} disabled={busy}>{action}</button>
        </div>
      </form>
    </Dialog>
  );
}

interface ActionProps {
  label: string;
  /** The question of a dialog that opens before the action. Without a question the action runs at once. */
  question?: ComponentChildren;
  /** The text of the dialog's button, by default the label. */
  confirm?: string;
  run: () => Promise<unknown>;
  disabled?: boolean;
}

/** A button that runs an action, after a question if the action cannot be undone. */
export function Action({ label, question, confirm = label, run, disabled }: ActionProps) {
  const [asks, setAsks] = useState(false);
  const [error, setError] = useState("");
  async function act(): Promise<void> {
    setError("");
    try {
      await run();
    } catch (failure) {
      setError(messageOf(failure));
    }
  }
  return (
    <>
      <button disabled={disabled} class={question ? "danger" : ""}
        onClick={() => (question ? setAsks(true) : void act())}>
        {label}
      </button>
      {error && <span class="failure" role="alert">{error}</span>}
      {asks && (
        <FormDialog title={label} action={confirm} danger submit={run} onClose={() => setAsks(false)}>
          <p>{question}</p>
        </FormDialog>
      )}
    </>
  );
}
