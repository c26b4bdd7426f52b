/** A tar archive of files, in the format of POSIX (`pax`). */

import type { CodeFile } from "./chosen_files";

const BLOCK = 512;
const NAME_BYTES_MAX = 100;
// The offsets of the fields that are not empty; the archive has no owners, times and links.
const FIELDS = { mode: 100, uid: 108, gid: 116, size: 124, mtime: 136, checksum: 148, kind: 156, magic: 257 };

/** The archive. The browser reads the files when the archive is read. */
export function packTar(files: readonly CodeFile[]): Blob {
  return new Blob([...files.flatMap(({ path, file }) => [...headerOf(path, file.size), file, padding(file.size)]), new Uint8Array(2 * BLOCK)]);
}

/** The header of a file. A name that older formats do not have gets a header of its own. */
function headerOf(path: string, size: number): Uint8Array<ArrayBuffer>[] {
  const name = new TextEncoder().encode(path);
  const isPlain = name.length === path.length && name.length <= NAME_BYTES_MAX;
  const header = block(name.slice(0, NAME_BYTES_MAX), size, "0");
  if (isPlain) return [header];
  const record = pathRecord(path, name.length);
  return [block(new TextEncoder().encode("pax"), record.length, "x"), record, padding(record.length), header];
}

/** The record `LENGTH path=PATH`, whose length includes the digits of the length. */
function pathRecord(path: string, bytes: number): Uint8Array<ArrayBuffer> {
  const rest = " path=\n".length + bytes;
  const digits = String(rest + String(rest).length).length;
  return new TextEncoder().encode(`${rest + digits} path=${path}\n`);
}

function block(name: Uint8Array, size: number, kind: string): Uint8Array<ArrayBuffer> {
  const made = new Uint8Array(BLOCK);
  const write = (at: number, text: string) => made.set(new TextEncoder().encode(text), at);
  made.set(name);
  write(FIELDS.mode, "0000644");
  write(FIELDS.uid, "0000000");
  write(FIELDS.gid, "0000000");
  write(FIELDS.size, size.toString(8).padStart(11, "0"));
  write(FIELDS.mtime, "00000000000");
  // The sum counts its own field as spaces.
  write(FIELDS.checksum, " ".repeat(8));
  write(FIELDS.kind, kind);
  write(FIELDS.magic, "ustar\x0000");
  const sum = made.reduce((total, byte) => total + byte, 0);
  write(FIELDS.checksum, `${sum.toString(8).padStart(6, "0")}\0 `);
  return made;
}

/** The zeros up to the next block. */
function padding(size: number): Uint8Array<ArrayBuffer> {
  return new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);
}
