/** The key that goes to the field that searches a view, also before that view is there. */

import { parseHash, viewOf } from "./router";

// They write nothing alone, and end nothing.
const MODIFIERS = ["Shift", "Control", "Alt", "AltGraph", "Meta", "CapsLock"];

let stopWaiting = () => {};

/**
 * Give the keyboard to the field that searches the view of the address. While that view is loading
 * the field is still to come, and gets what was typed until then, too; the pointer and keys that
 * write no text end the wait.
 */
export function goToSearch(): void {
  stopWaiting();
  if (enterField("") || !isLoading()) return;
  let typed = "";
  const observer = new MutationObserver(() => {
    if (enterField(typed) || !isLoading()) stopWaiting();
  });
  const control = new AbortController();
  stopWaiting = () => {
    observer.disconnect();
    control.abort();
    stopWaiting = () => {};
  };
  // Before the shortcuts, of which none is meant meanwhile.
  const options = { capture: true, signal: control.signal };
  window.addEventListener("pointerdown", () => stopWaiting(), options);
  window.addEventListener("keydown", (event) => {
    if (MODIFIERS.includes(event.key)) return;
    const isText = event.key.length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (!isText && event.key !== "Backspace") return stopWaiting();
    typed = isText ? typed + event.key : typed.slice(0, -1);
    event.preventDefault();
    event.stopPropagation();
  }, options);
  observer.observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-view"] });
}

/** Whether the view of the address is shown; the one that is left stays for a moment. */
function isShown(main: HTMLElement): boolean {
  return main.dataset["view"] === viewOf(parseHash(location.hash));
}

function isLoading(): boolean {
  const main = document.getElementById("main");
  return main !== null && (!isShown(main) || main.querySelector(".loading") !== null);
}

/** Whether the field is there; then it has the keyboard, and the text where there is one. */
function enterField(typed: string): boolean {
  const main = document.getElementById("main");
  const field = main && isShown(main) ? main.querySelector<HTMLInputElement>("input[type=search]") : null;
  if (!field) return false;
  field.focus();
  field.select();
  if (typed) {
    field.value = typed;
    field.dispatchEvent(new InputEvent("input", { bubbles: true }));
  }
  return true;
}
