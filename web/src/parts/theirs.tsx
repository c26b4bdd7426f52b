/** What somebody else has made of a text meanwhile, beside the field in which one writes it. */

interface Props {
  /** What it is, in a word: `notes`. */
  name: string;
  text: string;
  /** Gives up one's own text for it. */
  take: () => void;
}

export function Theirs({ name, text, take }: Props) {
  return (
    <section aria-label={`${name} as others changed it`}>
      <p class="wait" role="status">Another user has changed the value to:</p>
      <pre class="theirs" tabIndex={0}>{text || "nothing"}</pre>
      <p><button type="button" onClick={take}>Use the new value</button></p>
    </section>
  );
}
