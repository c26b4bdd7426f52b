/** Model code on its way to the cluster: packed in the browser, offered, and sent if it is new. */

import { send } from "../../api/client";
import { putFile } from "../../api/upload";
import { bytesText } from "../../parts/format";
import type { CodeFile } from "./chosen_files";
import { packTar } from "./tar";

/** What the API itself takes where code lies in a bucket, which the page may not ask. */
const THROUGH_API_BYTES_MAX = 4 * 1024 * 1024;

/** The files as a `.tar.gz`: one content has one digest, wherever and whenever it is packed. */
export async function packFiles(files: CodeFile[]): Promise<Blob> {
  const sorted = [...files].sort((one, other) => (one.path < other.path ? -1 : 1));
  return new Response(packTar(sorted).stream().pipeThrough(new CompressionStream("gzip"))).blob();
}

/** Send an archive unless the cluster has it; returns its digest. */
export async function uploadArchive(archive: Blob, onProgress: (sent: number) => void, signal: AbortSignal): Promise<string> {
  const sha256 = await digestOf(archive);
  const body = { sha256, size: archive.size };
  const { needed, upload } = await send("post", "/api/v1/model-code", { body, signal });
  if (!needed || !upload) return sha256;
  const isOwn = upload.path.startsWith("/");
  if (!isOwn && archive.size > THROUGH_API_BYTES_MAX) {
    throw new Error(
      `the archive has ${bytesText(archive.size)}; the page can send ${bytesText(THROUGH_API_BYTES_MAX)} to this cluster. ` +
        "`detcloud create config.yaml DIR` sends more, and a .detignore leaves files out",
    );
  }
  const path = isOwn ? upload.path : `/api/v1/model-code/${sha256}`;
  await putFile(path, archive, { isSigned: isOwn, onProgress, signal });
  return sha256;
}

async function digestOf(archive: Blob): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", await archive.arrayBuffer());
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
