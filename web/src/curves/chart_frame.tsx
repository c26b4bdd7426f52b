/** The frame of every chart: its title, its files, its link and the full screen. */

import { createContext, type ComponentChildren } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import { messageOf } from "../parts/format";
import { showLater } from "../shell/later";
import { setQuery, useAddress } from "../shell/router";
import "./chart_frame.css";
import { ChartSourceContext } from "./chart_source";
import { pictureOf, savePng, saveSvg, type Picture } from "./picture";
import { fileName, saveFile } from "./save_chart";

interface Props {
  /** The chart's name within its view, for the heading and the buttons: `loss`. */
  name: string;
  /** The chart's name outside its view, for files and links: `loss, trials of experiment 7`. */
  title: string;
  /** The numbers of the chart. Without this the chart has no CSV. */
  csv?: (() => string) | undefined;
  /** The picture to save; by default the first SVG element inside the frame without the class `swatch`. */
  picture?: (() => Picture | null) | undefined;
  /** Buttons of this chart, before those of all charts. */
  tools?: ComponentChildren;
  children: ComponentChildren;
}

const FullScreen = createContext(false);
const AddToReport = showLater(async () => (await import("../views/reports/add_to_report")).AddToReport);
const pictures = new WeakMap<Element, () => Picture>();

/** The picture of a chart as it is shown now, by the chart's frame. Throws an error if the chart is not drawn. */
export function drawFrame(frame: Element): Picture {
  return pictures.get(frame)!();
}

/** Whether the chart is shown in full screen, for charts that must choose a size. */
export function useFullScreen(): boolean {
  return useContext(FullScreen);
}

export function ChartFrame({ name, title, csv, picture, tools, children }: Props) {
  const frame = useRef<HTMLElement>(null);
  const [isFull, setFull] = useState(false);
  const [error, setError] = useState("");
  const [isAdded, setAdded] = useState(false);
  const source = useContext(ChartSourceContext);
  const isLinked = useAddress().query.get("chart") === title;

  useEffect(() => {
    const onChange = () => setFull(document.fullscreenElement === frame.current);
    document.addEventListener("fullscreenchange", onChange);
    return () => document.removeEventListener("fullscreenchange", onChange);
  }, []);
  useEffect(() => {
    if (isLinked) frame.current?.scrollIntoView({ block: "center" });
  }, [isLinked]);

  function draw(): Picture {
    const svg = frame.current?.querySelector<SVGSVGElement>(".chart-body svg:not(.swatch)");
    const drawn = picture ? picture() : svg && pictureOf(svg, title);
    if (!drawn) throw new Error("the chart is not drawn yet: try again");
    return drawn;
  }
  useEffect(() => void pictures.set(frame.current!, draw));
  async function run(action: () => unknown): Promise<void> {
    setError("");
    try {
      await action();
    } catch (failure) {
      setError(messageOf(failure));
    }
  }

  return (
    <figure class={`chart${isLinked ? " linked" : ""}`} ref={frame}>
      <figcaption>
        <strong>{name}</strong>
        <span class="chart-tools" role="group" aria-label={`tools of ${name}`}>
          {tools}
          <button aria-label={`PNG of ${name}`} onClick={() => void run(() => savePng(draw(), title))}>PNG</button>
          <button aria-label={`SVG of ${name}`} onClick={() => void run(() => saveSvg(draw(), title))}>SVG</button>
          {csv && <button aria-label={`CSV of ${name}`} onClick={() => void run(() => saveFile(fileName(title, "csv"), new Blob([csv()], { type: "text/csv" })))}>CSV</button>}
          <LinkButton name={name} title={title} />
          {source && <button aria-label={`add ${name} to a report`} onClick={() => setAdded(true)}>Report</button>}
          {document.fullscreenEnabled && (
            <button aria-label={`${isFull ? "leave full screen" : "full screen"} of ${name}`}
              onClick={() => void run(() => (isFull ? document.exitFullscreen() : frame.current!.requestFullscreen()))}>
              {isFull ? "Exit full screen" : "Full screen"}
            </button>
          )}
        </span>
      </figcaption>
      {error && <p class="failure" role="alert">{error}</p>}
      {source && isAdded && <AddToReport source={source} onClose={() => setAdded(false)} />}
      <FullScreen.Provider value={isFull}><div class="chart-body">{children}</div></FullScreen.Provider>
    </figure>
  );
}

/** Puts the chart's link into the address bar, and on the clipboard where browsers allow it. */
function LinkButton({ name, title }: { name: string; title: string }) {
  const [copied, setCopied] = useState(false);
  async function link(): Promise<void> {
    setQuery({ chart: title });
    try {
      await navigator.clipboard.writeText(location.href);
      setCopied(true);
      setTimeout(() => setCopied(false), 2000);
    } catch {
      // The address bar has the link.
    }
  }
  return <button aria-label={`link to ${name}`} onClick={() => void link()}>{copied ? "Copied" : "Link"}</button>;
}
