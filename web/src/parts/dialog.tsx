/** Windows above the page: the browser's own, which keep the keyboard inside and end with Escape. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { messageOf } from "./format";

interface Props {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

export function Dialog({ title, onClose, children }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  // At once: a key that is pressed next is already for this window.
  useLayoutEffect(() => element.current?.showModal(), []);
  return (
    <dialog ref={element} aria-label={title} onClose={onClose}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

interface FormProps extends Props {
  action: string;
  danger?: boolean;
  submit: () => Promise<unknown>;
}

/** A window that does something: it ends when that was done, and says why if it was refused. */
export function FormDialog({ title, onClose, children, action, danger, submit }: FormProps) {
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
    <Dialog title={title} onClose={onClose}>
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
  /** Asked before; without it the action is one that can be taken back. */
  question?: string;
  run: () => Promise<unknown>;
  disabled?: boolean;
}

/** A button that does something, after a question where that cannot be undone. */
export function Action({ label, question, run, disabled }: ActionProps) {
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
        <FormDialog title={label} action={label} danger submit={run} onClose={() => setAsks(false)}>
          <p>{question}</p>
        </FormDialog>
      )}
    </>
  );
}
