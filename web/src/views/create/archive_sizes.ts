/** Sentences on where the bytes and files of a folder are, as harness/detcloud/shared/archive_sizes.py has them. */

interface SizedFile {
  path: string;
  file: { size: number };
}

const SHOWN_MAX = 3;
/** A smaller share of the whole is no reason for a folder over its limit. */
const SHARE_MIN = 0.01;
/** A folder with more than this share of the folder around it would be named twice. */
const PARENT_SHARE_MAX = 0.9;

/** The folders and files with most of the bytes, such as `.venv/ (200.0 MiB)`. */
export function describeLargest(files: SizedFile[]): string {
  const sizes: [string, number][] = files.map(({ path, file }) => [path, file.size]);
  const least = Math.max(1, sizes.reduce((sum, [, size]) => sum + size, 0) * SHARE_MIN);
  const parts = [["folders", largest(distinctFolders(sizes))], ["files", largest(sizes)]] as const;
  return parts
    .map(([noun, found]) => [noun, found.filter(([, size]) => size >= least)] as const)
    .filter(([, found]) => found.length > 0)
    .map(([noun, found]) => `the largest ${noun} are ${found.map(([name, size]) => `${name} (${mebibytes(size)})`).join(", ")}`)
    .join("; ");
}

/** The sentence on the folders with most of the files; "" where no file is in a folder. */
export function describeFullest(files: SizedFile[]): string {
  const found = largest(distinctFolders(files.map(({ path }) => [path, 1])));
  return found.length > 0 ? `The folders with most of them are ${found.map(([name, count]) => `${name} (${count})`).join(", ")}. ` : "";
}

export function mebibytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

function largest(found: [string, number][]): [string, number][] {
  return [...found].sort(([, one], [, other]) => other - one).slice(0, SHOWN_MAX);
}

/** The folders without those that hold nearly everything of the folder around them. */
function distinctFolders(sizes: [string, number][]): [string, number][] {
  const folders = new Map<string, number>();
  for (const [path, size] of sizes) {
    for (let end = path.indexOf("/"); end >= 0; end = path.indexOf("/", end + 1)) {
      const folder = path.slice(0, end + 1);
      folders.set(folder, (folders.get(folder) ?? 0) + size);
    }
  }
  return [...folders].filter(([folder, size]) => {
    const outer = folder.slice(0, folder.lastIndexOf("/", folder.length - 2) + 1);
    return outer === "" || size <= folders.get(outer)! * PARENT_SHARE_MAX;
  });
}
