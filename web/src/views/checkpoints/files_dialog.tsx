/** What a checkpoint is, with its metadata, and its files to download. */

import { collect, get, send, type Schemas } from "../../api/client";
import { apiUrl } from "../../api/place";
import { useLive } from "../../live/use_live";
import { Dialog } from "../../parts/dialog";
import { bytesText } from "../../parts/format";
import { CopyButton } from "../../parts/copy_button";
import { MetadataInPlace } from "../../parts/remarks";
import { Shown } from "../../parts/status";
import { useExperimentRight } from "../../shell/who";

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
        {(value) => (
          <>
            <p><code class="breaks">{uuid}</code> <CopyButton text={uuid} /></p>
            {value.damage && <p class="failure">Found damaged: {value.damage}</p>}
            <CheckpointMetadata checkpoint={value} onDone={checkpoint.refresh} />
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
      <p class="quiet">Download all files: <code>detcloud checkpoint download {uuid}</code></p>
      <div class="actions"><button onClick={onClose}>Close</button></div>
    </Dialog>
  );
}

interface MetadataProps {
  checkpoint: Schemas["Checkpoint"];
  onDone: () => Promise<void>;
}

function CheckpointMetadata({ checkpoint, onDone }: MetadataProps) {
  const { uuid, metadata, metadata_revision: revision } = checkpoint;
  const { mayChange } = useExperimentRight(checkpoint.experiment_id);
  const save = async (changed: Record<string, unknown>) => {
    await send("patch", "/api/v1/checkpoints/{uuid}", { path: { uuid }, body: { metadata: changed, revision } });
    await onDone();
  };
  return <MetadataInPlace of={`checkpoint ${uuid}`} metadata={metadata} mayEdit={mayChange} save={save} reload={onDone} />;
}

/** An address that a link may lead to: never a script. */
function safeUrl(url: string): string | undefined {
  const { protocol, href } = new URL(url, apiUrl() || location.href);
  return protocol === "https:" || protocol === "http:" ? href : undefined;
}
