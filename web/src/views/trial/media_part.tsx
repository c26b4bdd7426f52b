/** Images, histograms, texts and audio in a trial's TensorBoard files, by step. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { TrialWhole } from "../../api/answers";
import { get, type Schemas } from "../../api/client";
import { ChartFrame } from "../../curves/chart_frame";
import { rowsCsv } from "../../curves/save_chart";
import { SvgTip } from "../../curves/svg_tip";
import { axisTicks } from "../../curves/ticks";
import { useWidth } from "../../curves/use_width";
import { bytesText, countText, numberText } from "../../parts/format";
import { Empty, Failure, Loading } from "../../parts/status";
import { histogramBars, mediaSeries, textParts, type MediaItem, type MediaSeries } from "./media";
import "./media.css";

// Contents that are loaded without a click, in characters.
const UNASKED_MAX = 8_000_000;
const PAGE = 200;

interface Loaded {
  items: MediaItem[];
  next: string | null;
  readBytes: number;
  totalBytes: number;
  damages: string[];
}

export function MediaPart({ trial }: { trial: TrialWhole }) {
  const [loaded, setLoaded] = useState<Loaded | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  const control = useRef<AbortController | null>(null);

  /** Read on, up to so many characters of contents. */
  async function readOn(before: Loaded | null, most: number): Promise<void> {
    const { signal } = (control.current = new AbortController());
    setBusy(true);
    setError(null);
    try {
      let now = before;
      let size = 0;
      do {
        const page: Schemas["MediaPage"] = await get("/api/v1/trials/{trial_id}/media", { path: { trial_id: trial.id }, query: { limit: PAGE, cursor: now?.next ?? null }, signal });
        size += page.items.reduce((sum, { content, text }) => sum + content.length + text.length, 0);
        now = { items: [...(now?.items ?? []), ...page.items], next: page.next_cursor, readBytes: page.read_bytes, totalBytes: page.total_bytes, damages: [...(now?.damages ?? []), ...page.damages] };
        setLoaded(now);
      } while (now.next && size < most);
    } catch (failure) {
      if (!signal.aborted) setError(failure as Error);
    }
    if (!signal.aborted) setBusy(false);
  }
  useEffect(() => {
    void readOn(null, UNASKED_MAX);
    return () => control.current?.abort();
  }, [trial.id]);

  const series = mediaSeries(loaded?.items ?? []);
  return (
    <>
      {error && <Failure error={error} retry={() => void readOn(loaded, UNASKED_MAX)} />}
      {!loaded && !error && <Loading />}
      {loaded && (
        <div class="tools">
          <span class="quiet" role="status">
            {countText(loaded.items.length, "item")}; {bytesText(loaded.readBytes)} of {bytesText(loaded.totalBytes)} of event files read{isBusy && " …"}
          </span>
          {loaded.next && !isBusy && <button onClick={() => void readOn(loaded, UNASKED_MAX)}>Read more</button>}
          {!loaded.next && !isBusy && trial.ended_ms === null && <button onClick={() => void readOn(null, UNASKED_MAX)}>Read again</button>}
        </div>
      )}
      {loaded?.damages.map((damage) => <p key={damage} class="failure">A file was read up to damaged bytes: {damage}.</p>)}
      {loaded && !loaded.next && series.length === 0 && (
        <Empty>The trial has written no images, histograms, texts or audio for TensorBoard. A trial writes them to the folder <code>context.train.get_tensorboard_path()</code>.</Empty>
      )}
      <div class="media">
        {series.map((one) => <TagPart key={`${one.kind} ${one.tag}`} series={one} trial={trial.id} />)}
      </div>
    </>
  );
}

function TagPart({ series: { kind, tag, items }, trial }: { series: MediaSeries; trial: number }) {
  // The latest step, also when more are read, until another one is chosen.
  const [chosen, setChosen] = useState<number | null>(null);
  const place = chosen === null ? items.length - 1 : Math.min(chosen, items.length - 1);
  const item = items[place]!;
  return (
    <section aria-label={`${kind} ${tag}`}>
      <h2>{tag} <span class="quiet">{kind}</span></h2>
      <div class="tools">
        {items.length > 1 && (
          <input type="range" aria-label={`step of ${tag}`} aria-valuetext={`step ${item.step}`} min={0} max={items.length - 1} value={place}
            onInput={(event) => setChosen(Number(event.currentTarget.value))} />
        )}
        <span class="quiet">step {item.step}{items.length > 1 && `, ${place + 1} of ${items.length}`}</span>
      </div>
      <Content item={item} trial={trial} />
    </section>
  );
}

function Content({ item, trial }: { item: MediaItem; trial: number }) {
  const { kind, tag, step, size, content, content_type: type, text, buckets } = item;
  if (kind === "text") return <>{textParts(text).map((part, n) => ("rows" in part ? <TextTable key={n} rows={part.rows} label={tag} /> : <pre key={n} class="breaks" tabIndex={0}>{part.text}</pre>))}</>;
  if (kind === "histogram") return <Histogram buckets={buckets} name={tag} title={`${tag} at step ${step}, trial ${trial}`} />;
  if (!content) return <p class="quiet">{type ? `This ${kind} has ${bytesText(size)}, which is more than the page shows.` : `Browsers do not show the format of this ${kind}.`} TensorBoard shows it.</p>;
  const source = `data:${type};base64,${content}`;
  return kind === "audio"
    ? <audio controls src={source} aria-label={`${tag}, step ${step}`} />
    : <img src={source} alt={`${tag}, step ${step}`} />;
}

function TextTable({ rows: [head = [], ...rows], label }: { rows: string[][]; label: string }) {
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0}>
      <table>
        <thead><tr>{head.map((cell, n) => <th key={n} scope="col">{cell}</th>)}</tr></thead>
        <tbody>{rows.map((row, n) => <tr key={n}>{row.map((cell, place) => <td key={place}>{cell}</td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}

const [HEIGHT, LEFT, BOTTOM, TOP] = [180, 8, 22, 6];

function Histogram({ buckets, name, title }: { buckets: MediaItem["buckets"]; name: string; title: string }) {
  const [measured, ref] = useWidth(400);
  const width = Math.max(240, measured);
  const bars = histogramBars(buckets);
  if (bars.length === 0) return <p class="quiet">The histogram is empty.</p>;
  const [low, high] = [bars[0]!.left, bars.at(-1)!.right];
  const most = Math.max(...bars.map(({ count }) => count));
  const toX = (value: number) => LEFT + ((value - low) / (high - low || 1)) * (width - 2 * LEFT);
  const toY = (count: number) => HEIGHT - BOTTOM - (count / (most || 1)) * (HEIGHT - BOTTOM - TOP);
  return (
    <ChartFrame name={name} title={title} csv={() => rowsCsv(["from", "to", "count"], buckets)}>
      <SvgTip>
        <div ref={ref}>
          <svg class="histogram" width={width} height={HEIGHT} role="img" aria-label={`${title}: ${countText(buckets.length, "bucket")} from ${numberText(low)} to ${numberText(high)}`}>
            {bars.map(({ left, right, count }) => (
              <rect key={left} x={toX(left)} width={Math.max(1, toX(right) - toX(left) - 1)} y={toY(count)} height={HEIGHT - BOTTOM - toY(count)}
                data-tip={`${numberText(left)} to ${numberText(right)}\n${numberText(count)} values`} />
            ))}
            {axisTicks("number", low, high, Math.round(width / 90)).map(({ at, text }) => <text key={at} x={toX(at)} y={HEIGHT - 6} text-anchor="middle">{text}</text>)}
          </svg>
        </div>
      </SvgTip>
    </ChartFrame>
  );
}
