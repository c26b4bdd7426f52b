/** A configuration, as YAML. */

import { toYaml } from "../create/yaml";

export function ConfigPart({ config }: { config: Record<string, unknown> }) {
  return <pre tabIndex={0} aria-label="configuration">{toYaml(config)}</pre>;
}
