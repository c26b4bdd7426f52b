/** What a checkpoint is, with its metadata, and its files to download. */

import { collect, get, send } from "../../api/client";
import { apiUrl } from "../../api/place";
import { useLive } from "../../live/use_live";
import { Dialog } from "../../parts/dialog";
import { bytesText } from "../../parts/format";
import { CopyButton } from "../../parts/copy_button";
import { MetadataInPlace } from "../../parts/remarks";
import { Shown } from "../../parts/status";

export function FilesDialog({ uuid, onClose }: { uuid: string; onClose: () => void }) {
  const live = useLive(
    `files ${uuid}`,
    (signal) => collect((cursor) => get("/api/v1/checkpoints/{uuid}/files", { path: { uuid }, query: { limit: 500, cursor }, signal })),
    () => "still",
  );
  const checkpoint = useLive(`checkpoint ${uuid}`, (signal) => get("/api/v1/checkpoints/{uuid}", { path: { uuid }, signal }), () => "still");
  return (
    <Dialog title={`Files of ${uuid.slice(0, 8)}`} onClose={onClose}>
      <Shown live={checkpoint}>
        {({ uuid: full, damage, metadata, metadata_revision: revision }) => (
          <>
            <p><code class="breaks">{uuid}</code> <CopyButton text={uuid} /></p>
            {damage && <p class="failure">Found damaged: {damage}</p>}
            <MetadataInPlace of={`checkpoint ${full}`} metadata={metadata} reload={checkpoint.refresh}
              save={async (changed) => {
                await send("patch", "/api/v1/checkpoints/{uuid}", { path: { uuid: full }, body: { metadata: changed, revision } });
                await checkpoint.refresh();
              }} />
          </>
        )}
      </Shown>
      <Shown live={live}>
        {({ items, next }) => (
          <>
            <ul>
              {items.map(({ path, size, url }) => (
                <li key={path}><a href={safeUrl(url)} download={path.split("/").pop()}>{path}</a> {bytesText(size)}</li>
              ))}
            </ul>
            {next && <p class="quiet">The first {items.length}.</p>}
          </>
        )}
      </Shown>
      <p class="quiet">All of it: <code>detcloud checkpoint download {uuid}</code></p>
      <div class="actions"><button onClick={onClose}>Close</button></div>
    </Dialog>
  );
}

/** An address that a link may lead to: never a script. */
function safeUrl(url: string): string | undefined {
  const { protocol, href } = new URL(url, apiUrl() || location.href);
  return protocol === "https:" || protocol === "http:" ? href : undefined;
}
