/** The commands that lead to a running trial: a notebook or shell, a terminal, and ports. */

import { CopyButton } from "./copy_button";

interface Props {
  /** An experiment, command, notebook or shell; or a trial, with `isTrial`. */
  id: number;
  kind?: string;
  isTrial?: boolean;
  config?: { [name: string]: unknown };
}

/** Pairs of a list of facts. */
export function WaysIn({ id, kind, isTrial, config }: Props) {
  const ports = proxyPorts(config);
  return (
    <>
      {(kind === "notebook" || kind === "shell") && <Way name="Open it" command={`detcloud ${kind} open ${id}`} />}
      <Way name="Terminal" command={isTrial ? `detcloud ssh --trial ${id}` : `detcloud ssh ${id}`} />
      {ports.length > 0 && <Way name={`Port${ports.length > 1 ? "s" : ""} ${ports.join(", ")}`} command={`detcloud tunnel ${id}`} />}
    </>
  );
}

function Way({ name, command }: { name: string; command: string }) {
  return <><dt>{name}</dt><dd><code>{command}</code> <CopyButton text={command} /></dd></>;
}

/** The ports of `environment.proxy_ports` without repetitions. */
export function proxyPorts(config: { [name: string]: unknown } = {}): number[] {
  const { proxy_ports: entries } = (config["environment"] ?? {}) as { proxy_ports?: { proxy_port: number }[] };
  return [...new Set((entries ?? []).map(({ proxy_port: port }) => port))];
}
