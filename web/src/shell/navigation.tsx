/** The header: the cluster, the sections and their views, the search, and the user's menu. */

import { useEffect, useState } from "preact/hooks";
import { get, type Schemas } from "../api/client";
import { useLive } from "../live/use_live";
import { useCurrentInSight } from "../parts/tabs";
import { AlarmBanner } from "./alarm_banner";
import { Palette } from "./palette";
import { Shortcuts } from "./shortcuts";
import { href } from "./router";
import { goToSearch } from "./search_key";
import { signOut, UserMenu } from "./user_menu";
import { CREATE, sectionOf, SECTIONS, VIEWS, type Section } from "./view_list";

interface Props {
  /** Undefined until the cluster has told. */
  who: Schemas["CallerIdentity"] | undefined;
  /** The first part of the address. */
  current: string;
}

export function Navigation({ who, current }: Props) {
  const [opened, setOpened] = useState<"palette" | "shortcuts" | null>(null);
  const section = sectionOf(current);
  const bar = useCurrentInSight(section?.title ?? "");
  useShortcuts(setOpened);
  return (
    <header>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        To the content
      </a>
      <div class="bar-row">
        <Brand />
        <nav ref={bar} aria-label="views">
          {SECTIONS.map(({ title, views: [{ path, key }] }) => (
            <a key={title} href={href(...path)} title={`${title} (g ${key})`}
              aria-current={title !== section?.title ? undefined : current === path[0] ? "page" : "true"}>
              {title}
            </a>
          ))}
        </nav>
        <div class="who">
          <button class="search" onClick={() => setOpened("palette")} aria-keyshortcuts="Control+K">
            <span>Go to …</span> <kbd>Ctrl K</kbd>
          </button>
          <a class="button primary" href={href(...CREATE.path)} title={`${CREATE.title} (g ${CREATE.key})`}
            aria-current={current === CREATE.path[0] ? "page" : undefined}>New<span class="rest"> experiment</span></a>
          <UserMenu who={who} openShortcuts={() => setOpened("shortcuts")} />
        </div>
      </div>
      {section && section.views.length > 1 && <SecondRow section={section} current={current} />}
      <AlarmBanner />
      {opened === "palette" && (
        <Palette onClose={() => setOpened(null)} others={[
          { title: "Keyboard shortcuts", run: () => setOpened("shortcuts") },
          { title: "Sign out", run: () => void signOut() },
        ]} />
      )}
      {opened === "shortcuts" && <Shortcuts onClose={() => setOpened(null)} />}
    </header>
  );
}

/** The cluster's name: of a deployed cluster its own, of a cluster on one machine the page's host. */
function Brand() {
  const { value } = useLive("cluster", (signal) => get("/api/v1/cluster", { signal }), () => "still");
  return (
    <a class="brand" href={href("home")} title={value && `cluster ${value.cluster_id}, detcloud ${value.version}`}>
      <svg viewBox="0 0 16 16" width="18" height="18" aria-hidden="true">
        <path d="M1 12 L5 6 L9 9 L15 2" /><circle cx="15" cy="2" r="1" /><path d="M1 15 H15" />
      </svg>
      <span>{value ? clusterName(value.cluster_id) : "detcloud"}</span>
    </a>
  );
}

// The id of a cluster on one machine.
const RANDOM_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

function clusterName(id: string): string {
  return RANDOM_ID.test(id) ? location.host || "detcloud" : id;
}

function SecondRow({ section, current }: { section: Section; current: string }) {
  return (
    <nav class="second" aria-label={`views of ${section.title}`}>
      {section.views.map(({ title, short, path, key }) => (
        <a key={key} href={href(...path)} title={`${title} (g ${key})`}
          aria-current={current === path[0] ? "page" : undefined}>{short ?? title}</a>
      ))}
    </nav>
  );
}

/** Ctrl K opens the palette; the others are no shortcuts where one types. */
function useShortcuts(open: (window: "palette" | "shortcuts") => void): void {
  useEffect(() => {
    let isGoing = false;
    function onKey(event: KeyboardEvent): void {
      const target = event.target as HTMLElement;
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        open("palette");
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (target.closest("input, textarea, select, dialog")) return;
      if (event.key === "?") open("shortcuts");
      if (event.key === "/") {
        event.preventDefault();
        goToSearch();
      }
      const view = isGoing ? VIEWS.find(({ key }) => key === event.key) : undefined;
      isGoing = event.key === "g";
      if (view) location.hash = href(...view.path);
    }
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
}
