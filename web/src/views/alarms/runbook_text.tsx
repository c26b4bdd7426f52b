/** A page of the runbook. */

import type { ComponentChildren } from "preact";
import { href } from "../../shell/router";
import { linkedAlarm, parseMarkdown, type Block, type Inline } from "./markdown";

/** Show a text in Markdown below the view's own heading: a first heading in it is left out. */
export function RunbookText({ text }: { text: string }) {
  const blocks = parseMarkdown(text);
  const shown = blocks[0]?.kind === "heading" && blocks[0].level === 1 ? blocks.slice(1) : blocks;
  return <div class="runbook">{shown.map((block, place) => <BlockPart key={place} block={block} />)}</div>;
}

function BlockPart({ block }: { block: Block }) {
  if (block.kind === "heading") return block.level <= 2 ? <h2>{show(block.content)}</h2> : <h3>{show(block.content)}</h3>;
  if (block.kind === "paragraph") return <p>{show(block.content)}</p>;
  if (block.kind === "code") return <pre tabIndex={0}>{block.text}</pre>;
  if (block.kind === "list") return <ul>{block.items.map((item, place) => <li key={place}>{show(item)}</li>)}</ul>;
  return (
    <div class="scroll" role="region" aria-label={plainText(block.head)} tabIndex={0}>
      <table>
        <thead><tr>{block.head.map((cell, place) => <HeadCell key={place} cell={cell} />)}</tr></thead>
        <tbody>
          {block.rows.map((row, place) => <tr key={place}>{row.map((cell, column) => <td key={column}>{show(cell)}</td>)}</tr>)}
        </tbody>
      </table>
    </div>
  );
}

/** A column without a title has no head for a screen reader. */
function HeadCell({ cell }: { cell: Inline[] }) {
  return cell.length > 0 ? <th scope="col">{show(cell)}</th> : <td />;
}

function plainText(head: Inline[][]): string {
  return head.map((cell) => cell.map(({ text }) => text).join("")).filter(Boolean).join(", ");
}

function show(content: Inline[]): ComponentChildren {
  return content.map((part, place) => {
    if (part.kind === "code") return <code key={place}>{part.text}</code>;
    if (part.kind === "strong") return <strong key={place}>{part.text}</strong>;
    return part.kind === "link" ? <Link key={place} text={part.text} to={part.to} /> : part.text;
  });
}

/** A link to another page of the runbook or the web. Other documents are not on the page. */
function Link({ text, to }: { text: string; to: string }) {
  const alarm = linkedAlarm(to);
  if (alarm) return <a href={href("alarms", alarm)}>{text}</a>;
  if (to.startsWith("https://")) return <a href={to} rel="noreferrer">{text}</a>;
  return <span>{text}</span>;
}
