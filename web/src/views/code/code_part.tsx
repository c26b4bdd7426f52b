/** The model code of an experiment: its files as a tree, and the one that the address names. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { collect, get } from "../../api/client";
import { useLive } from "../../live/use_live";
import { SearchField } from "../../parts/filter_fields";
import { bytesText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { useRoute } from "../../shell/router";
import { CodeText, codeLink } from "./code_text";
import { baseName, buildTree, type CodeFile, type Folder } from "./code_tree";

/** What the API shows of one archive. */
const FILES_MAX = 10_000;
const FOUND_MAX = 200;

export function CodePart({ id }: { id: number }) {
  const live = useLive(
    `code of ${id}`,
    (signal) =>
      collect((cursor) => get("/api/v1/experiments/{experiment_id}/code", { path: { experiment_id: id }, query: { limit: 500, cursor }, signal }), FILES_MAX),
    () => "still",
  );
  const path = useRoute().query.get("path");
  return (
    <Shown live={live}>
      {({ items }) => items.length === 0 ? <Empty>The model code has no files.</Empty> : (
        <div class="code-view">
          <Files id={id} files={items} chosen={path} />
          {path === null
            ? <Empty>Choose a file. To download all files: <code>detcloud experiment download-model-def {id}</code></Empty>
            : <CodeText id={id} path={path} />}
        </div>
      )}
    </Shown>
  );
}

interface FilesProps {
  id: number;
  files: CodeFile[];
  chosen: string | null;
}

function Files({ id, files, chosen }: FilesProps) {
  const find = useRoute().query.get("find") ?? "";
  const wanted = find.toLowerCase();
  const tree = useMemo(() => buildTree(files), [files]);
  const found = wanted ? files.filter(({ path }) => path.toLowerCase().includes(wanted)) : [];
  return (
    <nav class="tree" aria-label="files of the model code">
      <form role="search" onSubmit={(event) => event.preventDefault()}>
        <SearchField name="find" title="Path contains" eager />
      </form>
      {!wanted && <FolderList id={id} folder={tree} chosen={chosen} />}
      {found.length > 0 && (
        <ul>
          {found.slice(0, FOUND_MAX).map((file) => (
            <FileItem key={file.path} file={file} name={file.path} link={codeLink(id, file.path, { find })} isChosen={file.path === chosen} />
          ))}
        </ul>
      )}
      {wanted && <p class="quiet" role="status">{found.length} of {files.length} files{found.length > FOUND_MAX && `, the first ${FOUND_MAX} are shown`}</p>}
    </nav>
  );
}

interface FolderProps {
  id: number;
  folder: Folder;
  chosen: string | null;
}

function FolderList({ id, folder, chosen }: FolderProps) {
  return (
    <ul>
      {folder.folders.map((one) => <FolderItem key={one.path} id={id} folder={one} chosen={chosen} />)}
      {folder.files.map((file) => (
        <FileItem key={file.path} file={file} name={baseName(file.path)} link={codeLink(id, file.path)} isChosen={file.path === chosen} />
      ))}
    </ul>
  );
}

/** A folder, whose content is there only while it is open. */
function FolderItem({ id, folder, chosen }: FolderProps) {
  const isAround = chosen?.startsWith(folder.path) ?? false;
  const [isOpen, setOpen] = useState(isAround);
  useEffect(() => {
    if (isAround) setOpen(true);
  }, [chosen]);
  return (
    <li>
      <details open={isOpen} onToggle={(event) => { event.stopPropagation(); setOpen(event.currentTarget.open); }}>
        <summary>{folder.name}</summary>
        {isOpen && <FolderList id={id} folder={folder} chosen={chosen} />}
      </details>
    </li>
  );
}

interface FileProps {
  file: CodeFile;
  name: string;
  link: string;
  isChosen: boolean;
}

function FileItem({ file, name, link, isChosen }: FileProps) {
  return (
    <li>
      <a href={link} aria-current={isChosen ? "page" : undefined}>{name}</a>{" "}
      <span class="quiet">{bytesText(file.size)}{file.is_text ? "" : ", not text"}</span>
    </li>
  );
}
