/** A window that changes what is said of something: texts, labels, one a line, and metadata. */

import { useState } from "preact/hooks";
import { FormDialog } from "./dialog";
import { exactText, parseExactly } from "../api/exact_json";
import { useKeptDraft } from "./kept_draft";
import { splitLabels } from "./labels";
import { metadataText, parseMetadata } from "./metadata";

export interface EditedField<T> {
  key: keyof T & string;
  title: string;
  /** The height of a text of several lines; without it the text is one line. */
  rows?: number;
  /** What the text must match, and that in words. */
  pattern?: string;
  hint?: string;
  isRequired?: boolean;
}

interface Props<T> {
  title: string;
  action: string;
  /** What is said now: texts, `labels` and `metadata`. */
  former: T;
  fields: EditedField<T>[];
  save: (changes: Partial<T>) => Promise<unknown>;
  onClose: () => void;
}

export function EditDialog<T extends { labels: string[]; metadata: object }>({ title, action, former, fields, save, onClose }: Props<T>) {
  // What was read when the window opened: the view behind it may read again meanwhile.
  const [first] = useState(former);
  const begun = exactText({ edited: former, labels: former.labels.join("\n"), metadata: metadataText(former.metadata) });
  const { text, wasKept, keep, drop } = useKeptDraft(`window ${title}`, begun);
  const written = parseExactly(text) as { edited: T; labels: string; metadata: string };
  const { edited, labels, metadata } = written;
  const write = (part: Partial<typeof written>) => keep(exactText({ ...written, ...part }));
  // By its text: a number that the page cannot carry stays as it is as long as nobody edits.
  const editsMetadata = metadata !== metadataText(first.metadata);
  const changes = findChanges(first, { ...edited, labels: splitLabels(labels) });
  const submit = async () => {
    await save(editsMetadata ? { ...changes, metadata: parseMetadata(metadata) } : changes);
    drop();
  };
  return (
    <FormDialog title={title} action={action} submit={submit} onClose={onClose}
      isChanged={editsMetadata || Object.keys(changes).length > 0}>
      {wasKept && <p class="quiet">Your unsaved draft was restored. <button type="button" onClick={() => keep(begun)}>Discard draft</button></p>}
      {fields.map((field) => (
        <label key={field.key}>{field.title}{" "}
          <Text field={field} value={String(edited[field.key])} onInput={(part) => write({ edited: { ...edited, [field.key]: part } })} />
        </label>
      ))}
      <label>Labels, one per line <textarea class="wide" rows={4} value={labels} onInput={(event) => write({ labels: event.currentTarget.value })} /></label>
      <label>Metadata (JSON) <textarea class="code wide" rows={4} spellcheck={false} value={metadata} onInput={(event) => write({ metadata: event.currentTarget.value })} /></label>
    </FormDialog>
  );
}

interface TextProps<T> {
  field: EditedField<T>;
  value: string;
  onInput: (text: string) => void;
}

function Text<T>({ field: { rows, pattern, hint, isRequired }, value, onInput }: TextProps<T>) {
  if (rows) return <textarea class="wide" rows={rows} value={value} onInput={(event) => onInput(event.currentTarget.value)} />;
  return (
    <input class="wide" value={value} required={isRequired ?? false} {...(pattern && { pattern })} {...(hint && { title: hint })}
      onInput={(event) => onInput(event.currentTarget.value)} />
  );
}

/** The fields that are other than they were; what nobody touched is not sent. */
export function findChanges<T extends object>(former: T, now: T): Partial<T> {
  const entries = Object.entries(now).filter(([key, value]) =>
    JSON.stringify(value) !== JSON.stringify(former[key as keyof T]));
  return Object.fromEntries(entries) as Partial<T>;
}
