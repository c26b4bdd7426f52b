/** The files of a folder that somebody chose or dropped, without those that stay where they are. */

import ignore from "ignore";
import { describeFullest, describeLargest, mebibytes } from "./archive_sizes";

export interface CodeFile {
  /** Below the folder, with `/` between its parts. */
  path: string;
  file: File;
}

export interface ChosenCode {
  /** The name of the folder or archive. */
  name: string;
  files: CodeFile[];
  /** How many files are left out. */
  leftOut: number;
  /** The files that NOTED_IGNORED leaves out. */
  noted: string[];
}

export const FILE_BYTES_MAX = 95 * 1024 * 1024;
export const FILES_MAX = 100_000;
const IGNORE_FILE = ".detignore";
const NAMES_SHOWN = 5;
/** What the command line leaves out, too: harness/detcloud/client/upload_filter.py. */
export const QUIETLY_IGNORED = [
  "/.detignore",
  "__pycache__/",
  "*.py[co]",
  "*$py.class",
  ".git/",
  ".vscode/",
  ".idea/",
  ".mypy_cache/",
];
/** Names that code may use by chance: the view names the files that these leave out. */
export const NOTED_IGNORED = [
  "terraform*",
  ".terraform*",
  "/shared_fs",
];

/** The files of a folder, which an input with `webkitdirectory` has. */
export async function readInput(list: FileList): Promise<ChosenCode> {
  const all = Array.from(list, (file) => {
    const [folder = "", ...rest] = file.webkitRelativePath.split("/");
    return { folder, path: rest.join("/"), file };
  });
  return { name: all[0]?.folder ?? "", ...(await leaveOut(all)) };
}

/** The files of the folder that was dropped; null where something else was. */
export async function readDrop(items: DataTransferItemList): Promise<ChosenCode | null> {
  const [root, ...others] = Array.from(items, (item) => item.webkitGetAsEntry());
  if (!root?.isDirectory || others.length > 0) return null;
  const files: CodeFile[] = [];
  await walk(root as FileSystemDirectoryEntry, "", files);
  return { name: root.name, ...(await leaveOut(files)) };
}

/** Those of a folder's files that its `.detignore` and the fixed list keep in. */
export async function leaveOut(files: CodeFile[]): Promise<Omit<ChosenCode, "name">> {
  const chosen = files.find(({ path }) => path === IGNORE_FILE);
  const own = chosen ? (await readText(chosen.file)).split(/\r?\n/) : [];
  // Patterns tell upper from lower case, as on the command line.
  const [quiet, notes, mine] = [QUIETLY_IGNORED, NOTED_IGNORED, own].map((lines) =>
    ignore({ allowRelativePaths: true, ignorecase: false }).add(lines));
  const candidates = files.filter(({ path }) => !quiet!.ignores(path) && !mine!.ignores(path));
  const kept = candidates.filter(({ path }) => !notes!.ignores(path)).map(({ path, file }) => ({ path, file }));
  const noted = candidates.filter(({ path }) => notes!.ignores(path)).map(({ path }) => path);
  return { files: kept, leftOut: files.length - kept.length, noted };
}

/** The sentence on files that NOTED_IGNORED leaves out; "" where it leaves out none. */
export function describeNoted(noted: string[]): string {
  if (noted.length === 0) return "";
  const more = noted.length > NAMES_SHOWN ? ` and ${noted.length - NAMES_SHOWN} more` : "";
  return `Not sent: ${noted.slice(0, NAMES_SHOWN).join(", ")}${more}. Names like ${NOTED_IGNORED.join(", ")} are always left out; rename what your code needs.`;
}

async function readText(file: File): Promise<string> {
  try {
    // The decoder skips a byte order mark.
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${IGNORE_FILE} is not UTF-8; save the file as UTF-8.`);
  }
}

/** Why these files cannot be sent, in words; "" where they can. */
export function findFault(files: CodeFile[]): string {
  if (files.length === 0) return "There are no files to upload.";
  if (files.length > FILES_MAX) {
    return `These are ${files.length} files; at most ${FILES_MAX} can be sent. ${describeFullest(files)}A .detignore leaves files out.`;
  }
  const broken = files.find(({ path }) => /[\p{Cc}\p{Cs}\\]/u.test(path));
  if (broken) return `The name ${JSON.stringify(broken.path)} holds a backslash, a control character or broken text; rename the file, or leave it out.`;
  const total = totalBytes(files);
  if (total <= FILE_BYTES_MAX) return "";
  return `The files hold ${mebibytes(total)}, the limit is ${mebibytes(FILE_BYTES_MAX)}; ${describeLargest(files)}. A .detignore leaves files out.`;
}

export function totalBytes(files: CodeFile[]): number {
  return files.reduce((sum, { file }) => sum + file.size, 0);
}

/** The files at the top that may be configurations, the likeliest first. */
export function configCandidates(files: CodeFile[]): CodeFile[] {
  const named = files.filter(({ path }) => /^[^/]+\.ya?ml$/.test(path));
  const rank = ({ path }: CodeFile) => (/^(config|const|experiment)/.test(path) ? 0 : 1);
  return named.sort((one, other) => rank(one) - rank(other) || (one.path < other.path ? -1 : 1));
}

async function walk(folder: FileSystemDirectoryEntry, prefix: string, found: CodeFile[]): Promise<void> {
  const reader = folder.createReader();
  for (;;) {
    // A call gives a part of the entries, and none at the end.
    const entries = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (entries.length === 0) return;
    for (const entry of entries) {
      const path = prefix + entry.name;
      if (found.length > FILES_MAX) return;
      if (entry.isDirectory) await walk(entry as FileSystemDirectoryEntry, `${path}/`, found);
      else found.push({ path, file: await new Promise((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject)) });
    }
  }
}
