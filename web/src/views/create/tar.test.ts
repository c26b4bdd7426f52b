import { expect, test } from "vitest";
import { packTar } from "./tar";

const BLOCK = 512;

interface Entry {
  path: string;
  size: number;
}

/** The files of an archive. Each header must have the sum of its bytes. */
async function unpack(archive: Blob): Promise<Entry[]> {
  const bytes = new Uint8Array(await archive.arrayBuffer());
  const text = (from: number, length: number) => new TextDecoder().decode(bytes.slice(from, from + length)).replace(/\0.*$/s, "");
  const found: Entry[] = [];
  let path: string | undefined;
  let at = 0;
  while (bytes[at]) {
    const size = Number.parseInt(text(at + 124, 12), 8);
    const header = bytes.slice(at, at + BLOCK).fill(32, 148, 156);
    expect(Number.parseInt(text(at + 148, 8), 8)).toBe(header.reduce((sum, byte) => sum + byte, 0));
    expect(text(at + 257, 6)).toBe("ustar");
    at += BLOCK;
    if (text(at - BLOCK + 156, 1) === "x") {
      const [, length, name] = /^(\d+) path=(.*)\n$/s.exec(text(at, size))!;
      expect(Number(length)).toBe(size);
      path = name;
    } else {
      found.push({ path: path ?? text(at - BLOCK, 100), size });
      path = undefined;
    }
    at += BLOCK * Math.ceil(size / BLOCK);
  }
  expect(bytes.length).toBe(at + 2 * BLOCK);
  return found;
}

test("an archive has all files with their whole names, whatever the names are", async () => {
  // Older formats have room for names of 100 bytes. The length of a record counts its own digits.
  const names = ["a.py", "x".repeat(100), "x".repeat(101), `${"deep/".repeat(60)}a.py`, "größe/a b.py", "模".repeat(40), ...[84, 85, 86, 87, 88, 89].map((n) => `é${"y".repeat(n)}`)];
  const sizes = names.map((_, n) => [0, 1, 511, 512, 513, 5_000][n % 6]!);
  const archive = packTar(names.map((path, n) => ({ path, file: new File(["z".repeat(sizes[n]!)], "any") })));
  expect(await unpack(archive)).toEqual(names.map((path, n) => ({ path, size: sizes[n] })));
});

test("an archive of the same files has the same bytes", async () => {
  const bytes = () => packTar([{ path: "é.py", file: new File(["a"], "one", { lastModified: Math.random() * 1e12 }) }]).arrayBuffer();
  expect(await bytes()).toEqual(await bytes());
});
