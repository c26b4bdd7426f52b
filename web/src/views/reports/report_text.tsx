/** The text of a report, with its charts. */

import { MarkdownText } from "../../parts/markdown_text";
import { withSettings, type Kind } from "./chart_block";
import { ReportChart } from "./report_chart";
import { linkOf, replaceLines } from "./report_links";

interface Props {
  text: string;
  /** Called with the text with other settings of a chart; without it, settings last as long as the view. */
  onChange?: (text: string) => void;
}

export function ReportText({ text, onChange }: Props) {
  return (
    <MarkdownText text={text} lower={1} linkOf={linkOf}
      codeOf={(block) => block.language !== "chart" ? undefined : (
        <ReportChart text={block.text} line={block.line}
          {...(onChange && { onSettings: (kind: Kind, changes: Record<string, string | null>) => onChange(replaceLines(text, block.line, block.text, withSettings(block.text, kind, changes))) })} />
      )} />
  );
}
