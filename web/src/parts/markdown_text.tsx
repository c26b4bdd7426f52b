/** Markdown on the page: elements for its tree, and never markup from its text. */

import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { parseMarkdown, plainText, type Block, type CodeBlock, type Inline } from "./markdown";
import "./markdown.css";

interface Props {
  text: string;
  /** The address that a link leads to; null shows the link as text. */
  linkOf: (to: string) => string | null;
  /** What stands in place of a block of code; undefined for the code itself. */
  codeOf?: (block: CodeBlock) => ComponentChildren;
  /** How many levels the headings are lowered, below the headings of the view. */
  lower: number;
}

type HeadingTag = "h2" | "h3" | "h4" | "h5" | "h6";

/** A text in Markdown below the heading of its view. */
export function MarkdownText({ text, ...how }: Props) {
  const blocks = useMemo(() => parseMarkdown(text), [text]);
  return <div class="markdown"><Blocks blocks={blocks} how={how} /></div>;
}

type How = Omit<Props, "text">;

function Blocks({ blocks, how }: { blocks: Block[]; how: How }) {
  // A block of code keeps its part of the page while a text before it changes.
  let codes = 0;
  return <>{blocks.map((block, place) => <BlockPart key={block.kind === "code" ? `code ${(codes += 1)}` : place} block={block} how={how} />)}</>;
}

function BlockPart({ block, how }: { block: Block; how: How }) {
  const show = (content: Inline[]) => <Content content={content} linkOf={how.linkOf} />;
  if (block.kind === "heading") {
    const Tag = `h${Math.min(6, Math.max(2, block.level + how.lower))}` as HeadingTag;
    return <Tag>{show(block.content)}</Tag>;
  }
  if (block.kind === "paragraph") return <p>{show(block.content)}</p>;
  if (block.kind === "code") return <>{how.codeOf?.(block) ?? <pre tabIndex={0}>{block.text}</pre>}</>;
  if (block.kind === "rule") return <hr />;
  if (block.kind === "quote") return <blockquote><Blocks blocks={block.blocks} how={how} /></blockquote>;
  if (block.kind === "list") {
    const items = block.items.map((item, place) => <li key={place}><Item blocks={item} how={how} /></li>);
    return block.start === null ? <ul>{items}</ul> : <ol start={block.start}>{items}</ol>;
  }
  return (
    <div class="scroll" role="region" aria-label={block.head.map(plainText).filter(Boolean).join(", ")} tabIndex={0}>
      <table>
        <thead><tr>{block.head.map((cell, place) => cell.length > 0 ? <th key={place} scope="col">{show(cell)}</th> : <td key={place} />)}</tr></thead>
        <tbody>
          {block.rows.map((row, place) => <tr key={place}>{row.map((cell, column) => <td key={column}>{show(cell)}</td>)}</tr>)}
        </tbody>
      </table>
    </div>
  );
}

/** An item of a list: a single paragraph stands without space around it. */
function Item({ blocks, how }: { blocks: Block[]; how: How }) {
  const [first, ...rest] = blocks;
  if (first?.kind !== "paragraph") return <Blocks blocks={blocks} how={how} />;
  return <><Content content={first.content} linkOf={how.linkOf} /><Blocks blocks={rest} how={how} /></>;
}

function Content({ content, linkOf }: { content: Inline[]; linkOf: How["linkOf"] }): ComponentChildren {
  return content.map((part, place) => {
    if (!("content" in part)) return part.kind === "text" ? part.text : <code key={place}>{part.text}</code>;
    const inside = <Content content={part.content} linkOf={linkOf} />;
    if (part.kind === "strong") return <strong key={place}>{inside}</strong>;
    if (part.kind === "em") return <em key={place}>{inside}</em>;
    if (part.kind !== "link") return <s key={place}>{inside}</s>;
    const to = linkOf(part.to);
    return to === null ? <span key={place}>{inside}</span> : <a key={place} href={to} rel="noreferrer">{inside}</a>;
  });
}
