/** Saved pictures of charts: SVG files of their own, and PNG files made of these. */

import { readColours } from "./chart_colours";
import { fileName, saveFile } from "./save_chart";

export const SVG = "http://www.w3.org/2000/svg";
// Above the chart, for its title.
const TITLE_HEIGHT = 28;
const PNG_SCALE = 2;
// A file outside the page has no style sheet: these properties become attributes.
const PROPERTIES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap",
  "opacity", "font-size", "font-weight", "text-anchor", "paint-order", "dominant-baseline"];
const COLOURED = new Set(["fill", "stroke"]);

/** A picture that needs no style sheet: `text` is an SVG document. Sizes are in pixels. */
export interface Picture {
  text: string;
  width: number;
  height: number;
}

/** The picture of an SVG element of the page, below a title and on the page's background. */
export function pictureOf(drawn: SVGSVGElement, title: string): Picture {
  const box = drawn.viewBox.baseVal;
  const hasBox = drawn.hasAttribute("viewBox") && box.width > 0;
  const width = Math.ceil(hasBox ? box.width : drawn.getBoundingClientRect().width);
  const height = Math.ceil(hasBox ? box.height : drawn.getBoundingClientRect().height);
  const copy = drawn.cloneNode(true) as SVGSVGElement;
  const sources = [drawn, ...drawn.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  copies.forEach((element, n) => fixStyle(element, sources[n]!));
  for (const [name, value] of Object.entries({ x: 0, y: TITLE_HEIGHT, width, height })) copy.setAttribute(name, String(value));
  return framedPicture(new XMLSerializer().serializeToString(copy), title, width, height);
}

/** A picture of SVG text below a title. `content` begins at the origin of its own `svg` element. */
export function framedPicture(content: string, title: string, width: number, height: number): Picture {
  const { back, text } = readColours();
  const whole = height + TITLE_HEIGHT;
  const document = `<svg xmlns="${SVG}" width="${width}" height="${whole}" viewBox="0 0 ${width} ${whole}" font-family="system-ui, sans-serif" font-size="11">`
    + `<rect width="${width}" height="${whole}" fill="${back}"/>`
    + `<text x="8" y="19" font-size="14" fill="${text}">${escapeXml(title)}</text>${content}</svg>`;
  return { text: document, width, height: whole };
}

export function escapeXml(text: string): string {
  // Characters that XML forbids would make the whole file unreadable.
  const allowed = text.replace(/[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu, "�");
  return allowed.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}

export function saveSvg(picture: Picture, title: string): void {
  saveFile(fileName(title, "svg"), new Blob([picture.text], { type: "image/svg+xml" }));
}

export async function savePng(picture: Picture, title: string): Promise<void> {
  const image = new Image();
  // The page's policy allows no blob: addresses for images.
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(picture.text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [PNG_SCALE * picture.width, PNG_SCALE * picture.height];
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  const content = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve));
  if (content === null) throw new Error("the browser could not draw the picture: save it as SVG");
  saveFile(fileName(title, "png"), content);
}

/** Give a copied element the looks of its source as attributes. */
function fixStyle(copy: Element, source: Element): void {
  const style = getComputedStyle(source);
  for (const name of PROPERTIES) {
    const value = style.getPropertyValue(name);
    if (value) copy.setAttribute(name, COLOURED.has(name) ? plainColour(value) : value);
  }
  // A link of the page leads nowhere in a file.
  for (const name of ["class", "style", "href", "tabindex", "data-tip"]) copy.removeAttribute(name);
}

const plainColours = new Map<string, string>();
let pixel: CanvasRenderingContext2D | undefined;

/** A computed colour in a form that all programs read; `none` as given. */
function plainColour(colour: string): string {
  if (!colour.startsWith("color") && !colour.startsWith("ok")) return colour;
  let plain = plainColours.get(colour);
  if (plain === undefined) {
    pixel ??= document.createElement("canvas").getContext("2d", { willReadFrequently: true })!;
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = colour;
    pixel.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pixel.getImageData(0, 0, 1, 1).data;
    plain = `rgba(${red}, ${green}, ${blue}, ${(alpha! / 255).toFixed(3)})`;
    plainColours.set(colour, plain);
  }
  return plain;
}
