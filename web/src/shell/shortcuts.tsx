/** A window that tells the keys of the page. */

import { Dialog } from "../parts/dialog";
import { VIEWS } from "./view_list";

export function Shortcuts({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl class="facts">
        <dt><kbd>Ctrl</kbd> <kbd>K</kbd></dt><dd>go to a view, experiment, command, trial, model or report</dd>
        {VIEWS.map(({ title, key }) => (
          <div class="pair" key={key}><dt><kbd>g</kbd> then <kbd>{key}</kbd></dt><dd>{title}</dd></div>
        ))}
        <dt><kbd>/</kbd></dt><dd>the first field that searches</dd>
        <dt><kbd>.</kbd> and <kbd>,</kbd></dt><dd>the next and the previous error of a log</dd>
        <dt><kbd>v</kbd></dt><dd>compare the selected experiments</dd>
        <dt><kbd>?</kbd></dt><dd>these shortcuts</dd>
        <dt><kbd>Esc</kbd></dt><dd>close a window</dd>
      </dl>
      <div class="actions"><button onClick={onClose}>Close</button></div>
    </Dialog>
  );
}
