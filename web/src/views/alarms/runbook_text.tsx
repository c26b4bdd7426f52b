/** A page of the runbook. */

import { MarkdownText } from "../../parts/markdown_text";
import { href } from "../../shell/router";

/** Show a page below the view's own heading: the heading of the page is left out. */
export function RunbookText({ text }: { text: string }) {
  return <MarkdownText text={text.replace(/^# .*/, "")} linkOf={linkOf} lower={0} />;
}

/** The address of another page of the runbook or of the web. Other documents are not on the page. */
function linkOf(to: string): string | null {
  const alarm = linkedAlarm(to);
  if (alarm) return href("alarms", alarm);
  return to.startsWith("https://") ? to : null;
}

/** The name of the alarm whose page a link of the runbook leads to; null for other links. */
export function linkedAlarm(to: string): string | null {
  const found = /^([a-z][a-z-]*)\.md(?:#.*)?$/.exec(to);
  return found ? found[1]! : null;
}
