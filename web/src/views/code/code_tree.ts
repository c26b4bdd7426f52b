/** Files as a tree of folders, and a text as lines. */

import type { Schemas } from "../../api/client";

export type CodeFile = Schemas["CodeFileAnswer"];

export interface Folder {
  name: string;
  /** With a `/` at its end; empty for the outermost folder. */
  path: string;
  folders: Folder[];
  files: CodeFile[];
}

/** The folder around all files; in each folder things have the order in which they come. */
export function buildTree(files: CodeFile[]): Folder {
  const root: Folder = { name: "", path: "", folders: [], files: [] };
  const known = new Map([["", root]]);
  for (const file of files) findFolder(known, file.path.slice(0, file.path.lastIndexOf("/") + 1)).files.push(file);
  return root;
}

function findFolder(known: Map<string, Folder>, path: string): Folder {
  const found = known.get(path);
  if (found) return found;
  const start = path.lastIndexOf("/", path.length - 2) + 1;
  const folder: Folder = { name: path.slice(start, -1), path, folders: [], files: [] };
  findFolder(known, path.slice(0, start)).folders.push(folder);
  known.set(path, folder);
  return folder;
}

export function baseName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** The lines as an editor counts them: an end of a line at the end of the text begins none. */
export function splitLines(text: string): string[] {
  const lines = text.split(/\r\n|\n|\r/);
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

/** Which part of a text is shown, of `size` lines each and counted from 0: that of a line, or else the one that is asked for. */
export function shownPart(lines: number, size: number, part: string | null, line: string | null): number {
  const last = Math.max(0, Math.ceil(lines / size) - 1);
  const wanted = line !== null ? Math.floor((Number(line) - 1) / size) : Number(part) - 1;
  return Number.isInteger(wanted) ? Math.min(Math.max(0, wanted), last) : 0;
}
